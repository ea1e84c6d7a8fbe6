"""From weights as they are written to the share of each source: groups, sizes, temperature.

Shares decide what is drawn, so every operation here is exactly rounded: sums by `math.fsum`, single multiplications and
divisions, roots by `decimal`. All machines find the same floats.
"""

# S = sources, in order of name.

import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msd.planner.config.mixture import GroupConfig, Mode, Weights, sources_of, weight_of

_EXACT = decimal.Context(prec=40, rounding=decimal.ROUND_HALF_EVEN)
"""`ln`, `exp` and division of this context are correctly rounded; `**` of floats is the C library's."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each source, and which sources share a group's."""

    share_S: tuple[float, ...]
    """They sum to 1, or to 0 where nothing can be drawn."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Sources of each group, by place; inner groups before those that hold them."""

    def over(self, live_S: Sequence[bool]) -> tuple[float, ...]:
        """Return the shares when only some sources can be drawn; the others get 0.

        What a source leaves goes to those of its group, as long as one of them is live: a group keeps its share. What
        a whole group leaves goes to the group around it. Without a group around it is left out of the sum.
        """
        if all(live_S):
            return self.share_S
        share_S = [share if live else 0.0 for share, live in zip(self.share_S, live_S, strict=True)]
        for members in self.groups:
            meant = math.fsum(self.share_S[source] for source in members)
            left = math.fsum(share_S[source] for source in members)
            if left not in (0.0, meant):
                for source in members:
                    share_S[source] = share_S[source] / left * meant
        return tuple(share_S)


def shares_of(
    weights: Weights | None, names: Sequence[str], mode: Mode, temperature: float, rows: Mapping[str, int]
) -> Shares:
    """Return the shares of a tree of weights; sources that it leaves out have share 0.

    Args:
        weights: By source or group; None gives every source the same weight.
        names: Sources in order of name.
        mode: How weights and sizes make a share on the outermost level; groups have their own.
        temperature: Of `mode: temperature`.
        rows: Rows of an epoch by source: its size. Looked at where a mode asks for sizes.
    """
    tree: Weights = dict.fromkeys(names, 1.0) if weights is None else weights
    place = {name: number for number, name in enumerate(names)}
    share_S = [0.0] * len(names)
    groups: list[tuple[int, ...]] = []

    def divide(level: Weights, share: float, mode: Mode, temperature: float) -> None:
        drawn = {key: _drawn(value, mode, temperature, key, rows) for key, value in level.items()}
        total = math.fsum(drawn.values())
        for key, value in level.items():
            part = drawn[key] / total * share if total else 0.0
            if isinstance(value, GroupConfig):
                divide(value.weights, part, value.mode, value.temperature)
                groups.append(tuple(place[source] for source, _ in sources_of(value.weights)))
            else:
                share_S[place[key]] = part

    divide(tree, 1.0, mode, temperature)
    return Shares(tuple(share_S), tuple(groups))


def root(size: int, temperature: float) -> float:
    """Return `size ** (1 / temperature)`, the same on every machine; 0 for size 0."""
    if not size:
        return 0.0
    exponent = _EXACT.divide(_EXACT.ln(decimal.Decimal(size)), decimal.Decimal(temperature))
    return float(_EXACT.exp(exponent))


def _drawn(value: float | GroupConfig, mode: Mode, temperature: float, key: str, rows: Mapping[str, int]) -> float:
    """Return what a source or group draws among its neighbours: its weight, times what its size makes of it."""
    weight = weight_of(value)
    if mode == "explicit" or not weight:
        return weight
    size = _size(value, key, rows)
    return weight * (float(size) if mode == "proportional" else root(size, temperature))


def _size(value: float | GroupConfig, key: str, rows: Mapping[str, int]) -> int:
    """Return the rows of an epoch of a source, or of all sources of a group that have a weight."""
    if isinstance(value, GroupConfig):
        return sum(_size(inner, name, rows) for name, inner in value.weights.items() if weight_of(inner))
    return rows[key]
