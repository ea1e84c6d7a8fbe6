"""A run as whoever watches it sees it: the newest figures, and how they went. Values; no Dask, no clock."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Stats: TypeAlias = Mapping[str, Any]
"""As `engine.stats()` gives them."""

KEPT = 600
"""Points in time: twenty minutes at one every two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run between two looks."""

    at_s: float
    """Since the epoch."""
    step: int
    steps_per_s: float
    waited: float
    """Part of the time in which ranks waited for data."""
    plan: float
    """Cores that planning took."""
    load: float
    """Part of the time in which planning waited for rows."""
    construct: float
    """Cores that assembling took."""
    fill: float | None
    imbalance: float | None
    floor: float | None
    targets: Mapping[str, float]
    """Share of each source at the next step, of what the mixture counts."""
    realised: Mapping[str, float]
    """Share of each source in the tokens drawn since the last look."""


@dataclass(slots=True)
class RunView:
    """One run."""

    name: str
    latest: Stats = field(default_factory=dict)
    at_s: float = 0.0
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, stats: Stats, at_s: float) -> None:
        """Take the newest figures; what began anew since the last look makes no point."""
        before, then_s = self.latest, self.at_s
        self.latest, self.at_s = stats, at_s
        if not before or at_s <= then_s or before["generation"] != stats["generation"]:
            return
        if before["term"] != stats["term"] or stats["next_step"] < before["next_step"]:
            return
        self.points.append(_point(before, stats, then_s, at_s))


def sources_by_share(stats: Stats, most: int) -> tuple[list[str], list[str]]:
    """Return the sources with the largest shares, and the others."""
    names = sorted(stats["sources"], key=lambda name: (-stats["sources"][name]["target_share"], name))
    return names[:most], names[most:]


def failures_of(stats: Stats) -> list[tuple[str, str, int]]:
    """Return (source, reason, rows) of the rows that failed, the commonest first."""
    found = [
        (name, reason, count)
        for name, one in stats["sources"].items()
        for reason, count in (one.get("failed_by_reason") or {}).items()
    ]
    found += [(name, "killed", one["killed"]) for name, one in stats["sources"].items() if one.get("killed")]
    return sorted(found, key=lambda entry: (-entry[2], entry[0], entry[1]))


def memory_of(stats: Stats) -> list[tuple[str, str, int]]:
    """Return (process, role, bytes) of the processes of a run; one that has two roles once."""
    held: dict[int, tuple[str, str, int]] = {}
    for one in stats["constructors"]:
        held[one["pid"]] = (one["constructor"], "constructor", one["pss_bytes"] or 0)
    for one in stats["hosts"]:
        held[one["pid"]] = (one["host"], one["role"], one["pss_bytes"] or 0)
    return sorted(held.values(), key=lambda entry: (entry[1], entry[0]))


def _point(before: Stats, now: Stats, then_s: float, at_s: float) -> Point:
    seconds = at_s - then_s
    drawn = {
        name: max(0, one["tokens"] - before["sources"].get(name, one)["tokens"]) for name, one in now["sources"].items()
    }
    total = sum(drawn.values())
    recent = [one for one in now.get("recent", []) if one["step"] >= before["next_step"]]

    def mean(key: str) -> float | None:
        return sum(one[key] for one in recent) / len(recent) if recent else None

    starved = sum(
        one["starved_s"] - before["sources"].get(name, one)["starved_s"] for name, one in now["sources"].items()
    )
    return Point(
        at_s=at_s,
        step=now["next_step"],
        steps_per_s=(now["next_step"] - before["next_step"]) / seconds,
        waited=_part(now["waited_s"] - before["waited_s"], seconds),
        plan=max(0.0, now["plan_s"] - before["plan_s"]) / seconds,
        load=_part(starved, seconds),
        construct=max(0.0, _assembled(now) - _assembled(before)) / seconds,
        fill=mean("fill"),
        imbalance=mean("imbalance"),
        floor=mean("imbalance_floor"),
        targets={name: one["target_share"] for name, one in now["sources"].items()},
        realised={name: count / total for name, count in drawn.items()} if total else {},
    )


def _assembled(stats: Stats) -> float:
    return float(sum(one["assemble_s"] for one in stats["constructors"]))


def _part(seconds: float, of: float) -> float:
    return min(1.0, max(0.0, seconds / of))
