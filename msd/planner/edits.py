"""What edits make of a run: which of them still act, which wait for their step, what each is allowed to say."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from msd.core.checks import few
from msd.core.journal import (
    PENDING,
    Edit,
    Report,
    Resume,
    SetWeights,
    SkipRows,
    SkipSteps,
    Suspend,
    edits_from_state,
    edits_to_state,
)
from msd.core.state import StateDict
from msd.errors import ConfigError, StateError, told
from msd.planner.config.mixture import check_weights
from msd.planner.mixture.schedule import MixtureSchedule, Stage
from msd.planner.mixture.shares import Shares, shares_of

MOST_STEPS = 10**6
"""Steps that one edit may skip: all of them are drawn at once."""
MOST_ROWS = 10**4
"""Rows that one edit may skip of a source that has fewer: each is passed over by itself, epoch after epoch."""
_MOST_ORDINAL = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Reweighted:
    """Weights that an edit set, and since when they hold."""

    schedule: MixtureSchedule
    """In steps."""
    at_step: int
    until: int
    """The step at which its ramp is over; at least the one after `at_step`."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The edits that act on steps to come, in the order in which they came."""

    suspends: tuple[Suspend, ...] = ()
    skips: tuple[SkipRows, ...] = ()
    weights: SetWeights | None = None
    ramp_from: Mapping[str, float] | None = None
    """The shares that a ramp of `weights` starts from, by source; None without a ramp, or after it."""

    @property
    def suspended(self) -> frozenset[str]:
        """Sources that are not drawn from."""
        return frozenset(edit.source for edit in self.suspends)

    def skips_of(self, source: str) -> tuple[SkipRows, ...]:
        """Return the rows of a source that are passed over."""
        return tuple(edit for edit in self.skips if edit.source == source)

    def reweighted(self, names: Sequence[str]) -> Reweighted | None:
        """Return the weights that were set, over the sources in order of name; None while the schedule holds."""
        edit = self.weights
        if edit is None:
            return None
        target = shares_of({**edit.weights}, names, "explicit", 1.0, {})
        if self.ramp_from is None:
            schedule = MixtureSchedule(tuple(names), target)
        else:
            before = Shares(tuple(self.ramp_from.get(name, 0.0) for name in names))
            schedule = MixtureSchedule(tuple(names), before, (Stage(edit.at_step, edit.ramp, target),))
        return Reweighted(schedule, edit.at_step, edit.at_step + max(1, edit.ramp))

    def target(self, names: Sequence[str], live_S: Sequence[bool]) -> tuple[float, ...]:
        """Return the shares that weights which were set lead to; without any, equal shares of what can be drawn."""
        if self.weights is None:
            return tuple(map(float, live_S))
        return shares_of({**self.weights.weights}, names, "explicit", 1.0, {}).over(live_S)

    def after(self, edit: Edit, shares: Mapping[str, float]) -> "InForce":
        """Return what acts once an edit has come into force.

        Args:
            edit: That is due; `SkipSteps` and `Report` leave nothing behind.
            shares: In force before it, by source.
        """
        match edit:
            case Suspend():
                others = tuple(known for known in self.suspends if known.source != edit.source)
                return replace(self, suspends=(*others, edit))
            case Resume():
                return replace(self, suspends=tuple(known for known in self.suspends if known.source != edit.source))
            case SkipRows():
                return replace(self, skips=(*self.skips, edit))
            case SetWeights():
                ramp_from = {name: share for name, share in shares.items() if share} if edit.ramp else None
                return replace(self, weights=edit, ramp_from=ramp_from)
            case SkipSteps() | Report():
                return self

    def at_boundary(self, step: int, ordinals: Mapping[str, int]) -> "InForce":
        """Return what still acts at the boundary before a step.

        Args:
            step: That is planned next.
            ordinals: By source, the first row that is not consumed.
        """
        found = self
        if any(edit.last < ordinals[edit.source] for edit in self.skips):
            found = replace(found, skips=tuple(edit for edit in self.skips if edit.last >= ordinals[edit.source]))
        if self.weights is not None and self.ramp_from is not None and step >= self.weights.at_step + self.weights.ramp:
            found = replace(found, ramp_from=None)
        return found

    def without(self, gone: Collection[str]) -> "InForce":
        """Return what acts on the sources that are left; weights of which none is left hold no more."""
        weights = None if self.weights is None else _reweighted_without(self.weights, gone)
        ramp_from = None
        if weights is not None and self.ramp_from is not None:
            ramp_from = {name: share for name, share in self.ramp_from.items() if name not in gone}
        return InForce(
            tuple(edit for edit in self.suspends if edit.source not in gone),
            tuple(edit for edit in self.skips if edit.source not in gone),
            weights,
            ramp_from,
        )

    def state_dict(self) -> StateDict:
        """Return the keys of a position that tell of these edits: none without any."""
        edits = [*self.suspends, *self.skips, *(() if self.weights is None else (self.weights,))]
        ramp = {} if self.ramp_from is None else {"ramp_from": dict(self.ramp_from)}
        return ({"edits": edits_to_state(edits)} if edits else {}) | ramp

    @classmethod
    def of(cls, edits: Iterable[Edit], ramp_from: Mapping[str, float] | None) -> "InForce":
        """Return what `state_dict` wrote."""
        found = cls()
        for edit in edits:
            found = found.after(edit, {})
        return replace(found, ramp_from=ramp_from)


NO_EDITS = InForce()


def pending_without(pending: Iterable[Edit], gone: Collection[str]) -> tuple[Edit, ...]:
    """Return the edits that still mean something when sources are gone."""
    kept: list[Edit] = []
    for edit in pending:
        if isinstance(edit, SetWeights):
            weights = _reweighted_without(edit, gone)
            kept += [] if weights is None else [weights]
        elif isinstance(edit, Report):
            losses = {name: loss for name, loss in edit.losses.items() if name not in gone}
            kept += [msgspec.structs.replace(edit, losses=losses)] if losses else []
        elif isinstance(edit, SkipSteps) or edit.source not in gone:
            kept.append(edit)
    return tuple(kept)


def pending_state(pending: Sequence[Edit]) -> StateDict:
    """Return the key of a position that tells of edits that wait: none without any."""
    return {PENDING: edits_to_state(pending)} if pending else {}


def check_edit(edit: Edit, totals: Mapping[str, int | None], rows: Mapping[str, int] | None = None) -> None:
    """Raise `ConfigError` unless an edit can mean something in this run.

    Args:
        edit: For whatever step.
        totals: Ordinals in all of each source, None without end.
        rows: Of an epoch of each source; None where they are not known.
    """
    try:
        edits_from_state(edits_to_state([edit]))
    except (StateError, TypeError) as error:
        raise ConfigError(f"{_name(edit)}: {told(error)}; give the types that its fields say") from None
    if not 0 <= edit.at_step <= 2**53:
        raise ConfigError(f"{_name(edit)}: at_step must be a step, got {edit.at_step}")
    if isinstance(edit, SkipSteps):
        if not 1 <= edit.count <= MOST_STEPS:
            raise ConfigError(f"skip_steps: count must lie in [1, {MOST_STEPS}], got {edit.count}")
        return
    if isinstance(edit, SetWeights):
        unknown = next((name for name in edit.weights if name not in totals), None)
        if unknown is not None:
            raise ConfigError(
                f"set_weights: there is no source {unknown!r} (sources: {few(totals)}); weights that are set while a "
                "run goes on are by source, without groups"
            )
        check_weights({**edit.weights}, "set_weights")
        if not 0 <= edit.ramp <= 2**53:
            raise ConfigError(f"set_weights: ramp must be 0 steps or more, got {edit.ramp}")
        return
    if isinstance(edit, Report):
        _check_losses(edit.losses, totals)
        return
    if edit.source not in totals:
        raise ConfigError(f"{_name(edit)}: there is no source {edit.source!r} (sources: {few(totals)})")
    if isinstance(edit, SkipRows):
        if not 0 <= edit.first <= edit.last <= _MOST_ORDINAL:
            raise ConfigError(
                f"skip_rows: first and last are ordinals, the last not before the first; got {edit.first} to "
                f"{edit.last} of source {edit.source!r}"
            )
        total = totals[edit.source]
        if total is not None and edit.first >= total:
            raise ConfigError(f"skip_rows: source {edit.source!r} ends at ordinal {total}, got {edit.first}")
        if rows is not None:
            _check_span(edit, total, rows[edit.source])


def _check_losses(losses: Mapping[str, float], sources: Collection[str]) -> None:
    for name, loss in losses.items():
        if name not in sources:
            raise ConfigError(f"report: there is no source {name!r} (sources: {few(sources)})")
        if not math.isfinite(loss):
            raise ConfigError(f"report: the loss of {name!r} must be a finite number, got {loss}; leave it out")


def _check_span(edit: SkipRows, total: int | None, rows: int) -> None:
    num_skipped = (edit.last if total is None else min(edit.last, total - 1)) - edit.first + 1
    if num_skipped > max(rows, MOST_ROWS):
        raise ConfigError(
            f"skip_rows: {num_skipped} rows are {num_skipped / max(1, rows):.3g} epochs of source {edit.source!r}; "
            f"skip at most {max(rows, MOST_ROWS)} at once, or suspend the source to draw from it no longer"
        )


def notes_of_edits(edits: Iterable[Edit], before: InForce, ordinals: Mapping[str, int]) -> list[str]:
    """Return what people are told where edits come into force, one line each.

    Args:
        edits: That are due, in order.
        before: What acted before them.
        ordinals: By source, the first row that is not consumed.
    """
    suspended, notes = set(before.suspended), []
    for edit in edits:
        by = f" by {edit.who}" if edit.who else ""
        match edit:
            case Suspend(source=source):
                why = f": {edit.reason}" if edit.reason else ""
                already = " (it was already)" if source in suspended else ""
                notes.append(f"source {source!r} is suspended{by}{already}{why}")
                suspended.add(source)
            case Resume(source=source):
                already = "" if source in suspended else " (it was not suspended)"
                notes.append(f"source {source!r} is resumed{by}{already}")
                suspended.discard(source)
            case SkipRows(source=source, first=first, last=last):
                rows = (
                    f"row {first} of source {source!r} is"
                    if first == last
                    else (f"rows {first} to {last} of source {source!r} are")
                )
                late = "" if first >= ordinals[source] else f"; those before {ordinals[source]} were drawn already"
                notes.append(f"{rows} passed over from here on{by} ({edit.reason}){late}")
            case SetWeights():
                ramp = f" over {edit.ramp} steps" if edit.ramp else ""
                notes.append(f"weights are set{by}{ramp}: {few(f'{n} {w:g}' for n, w in edit.weights.items())}")
            case Report():
                pass
            case SkipSteps(count=count):
                notes.append(f"what {count} steps would have held is skipped{by}")
    return notes


def _reweighted_without(edit: SetWeights, gone: Collection[str]) -> SetWeights | None:
    left = {name: weight for name, weight in edit.weights.items() if name not in gone}
    fields: dict[str, Any] = {name: getattr(edit, name) for name in edit.__struct_fields__}
    return SetWeights(**(fields | {"weights": left})) if any(left.values()) else None


def _name(edit: Edit) -> str:
    return str(edit.__struct_config__.tag)
