"""What happened in a run, as typed events: read off the figures of two looks. Values; no Dask, no clock, no I/O."""

from collections.abc import Iterator
from typing import Any

import msgspec

from msd.runtime.dask.watching.view import Stats, failures_of

PROGRESS_EVERY_S = 60.0
WAITS_AFTER_S = 5.0
"""Planning that waits for one thing for so long is an event."""


class Happening(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened in a run; `at` is seconds since the epoch, of the look that found it."""

    at: float
    step: int
    """That was planned next."""


class Began(Happening, frozen=True, kw_only=True, tag="began"):
    """A run began, or goes on from a saved position."""

    run: str
    generation: int
    mesh: dict[str, int]
    sources: list[str]


class Moved(Happening, frozen=True, kw_only=True, tag="moved"):
    """A load, restore or rewind opened a generation."""

    generation: int


class Edited(Happening, frozen=True, kw_only=True, tag="edited"):
    """An edit was journalled: weights, a source suspended or resumed, rows or steps skipped."""

    edit: dict[str, Any]
    """As `engine.edits()` gives it: what, from which step on, by whom and when."""


class Lost(Happening, frozen=True, kw_only=True, tag="lost"):
    """A process of the run was lost."""

    role: str
    name: str
    how: str


class Replaced(Happening, frozen=True, kw_only=True, tag="replaced"):
    """What was lost is there again."""

    role: str
    name: str
    took_s: float


class Scaled(Happening, frozen=True, kw_only=True, tag="scaled"):
    """Loaders or hosts were decided on."""

    about: str
    why: str


class Limited(Happening, frozen=True, kw_only=True, tag="limited"):
    """One source began to limit the steps, another did, or none does any more."""

    source: str | None
    text: str


class Waited(Happening, frozen=True, kw_only=True, tag="waited"):
    """Planning has waited for `WAITS_AFTER_S` for the same, or does no more."""

    waits_for: str | None


class RowsFailed(Happening, frozen=True, kw_only=True, tag="rows_failed"):
    """Rows of a source failed for a reason: told of the first, and whenever they have become twice as many."""

    source: str
    reason: str
    rows: int
    """In all."""


class Saved(Happening, frozen=True, kw_only=True, tag="saved"):
    """A snapshot is durable."""

    snapshot: str
    of_step: int
    size_bytes: int


class SaveFailed(Happening, frozen=True, kw_only=True, tag="save_failed"):
    """A snapshot or edit could not be written."""

    failures: int
    """In all, since the planner began."""
    why: str


class Progress(Happening, frozen=True, kw_only=True, tag="progress"):
    """How a run went in the last minute."""

    steps_per_s: float
    waited: float
    """Part of the time in which ranks waited for data."""
    fill: float
    tokens: dict[str, int]
    """Drawn of each source, in all."""


class Ended(Happening, frozen=True, kw_only=True, tag="ended"):
    """A run was closed, or failed."""

    error: str | None


class Happenings:
    """Of one run: takes its figures look by look, and says what happened between them."""

    def __init__(self, run: str) -> None:
        """Begin before the first look."""
        self._run = run
        self._before: Stats | None = None
        self._reference: tuple[float, Stats] | None = None
        """What progress is told since."""
        self._told_rows: dict[tuple[str, str], int] = {}
        self._waits: tuple[str | None, float] = (None, 0.0)
        self._is_wait_told = False
        self._limit: str | None = None

    def look(self, stats: Stats, at: float) -> list[Happening]:
        """Return what happened since the last look.

        Args:
            stats: `engine.stats()`.
            at: Seconds since the epoch.
        """
        before, self._before = self._before, stats
        found = [
            *self._begins(before, stats, at),
            *self._losses(before, stats, at),
            *self._decisions(before, stats, at),
        ]
        found += [*self._waiting(stats, at), *self._rows(stats, at), *self._saves(before, stats, at)]
        return [*found, *self._progress(before, stats, at)]

    def end(self, error: str | None, at: float) -> list[Happening]:
        """Return the last event."""
        return [Ended(at=at, step=0 if self._before is None else self._before["next_step"], error=error)]

    def _begins(self, before: Stats | None, stats: Stats, at: float) -> Iterator[Happening]:
        step, generation = stats["next_step"], stats["generation"]
        if before is None:
            sources = sorted(stats["sources"])
            yield Began(
                at=at, step=step, run=self._run, generation=generation, mesh=dict(stats["mesh"]), sources=sources
            )
            seen: list[dict[str, Any]] = []
        else:
            if generation != before["generation"]:
                yield Moved(at=at, step=step, generation=generation)
            # Edits that act in a new generation too are not made again.
            seen = before["edits"]
        for edit in stats["edits"]:
            if edit not in seen:
                yield Edited(at=at, step=step, edit=edit)

    def _losses(self, before: Stats | None, stats: Stats, at: float) -> Iterator[Happening]:
        known = {_loss(one): one["took_s"] for one in (before["recoveries"] if before else [])}
        for one in stats["recoveries"]:
            role, name, step = one["role"], one["name"], stats["next_step"]
            if _loss(one) not in known:
                yield Lost(at=at, step=step, role=role, name=name, how=one["how"])
            if one["took_s"] is not None and known.get(_loss(one)) is None:
                yield Replaced(at=at, step=step, role=role, name=name, took_s=one["took_s"])

    def _decisions(self, before: Stats | None, stats: Stats, at: float) -> Iterator[Happening]:
        step = stats["next_step"]
        known = _decided(before) if before else []
        for one in _decided(stats):
            if one not in known:
                yield Scaled(at=at, step=step, about=one["about"], why=one["why"])
        limit = stats["limited_by"]
        source = limit["source"] if limit else None
        if source != self._limit:
            self._limit = source
            yield Limited(
                at=at, step=step, source=source, text=limit["text"] if limit else "no source limits the steps"
            )

    def _waiting(self, stats: Stats, at: float) -> Iterator[Happening]:
        waits_for, since = self._waits
        if stats["waits_for"] != waits_for:
            if self._is_wait_told and stats["waits_for"] is None:
                yield Waited(at=at, step=stats["next_step"], waits_for=None)
            self._waits, self._is_wait_told = (stats["waits_for"], at), False
        elif waits_for is not None and not self._is_wait_told and at - since >= WAITS_AFTER_S:
            self._is_wait_told = True
            yield Waited(at=at, step=stats["next_step"], waits_for=waits_for)

    def _rows(self, stats: Stats, at: float) -> Iterator[Happening]:
        for source, reason, rows in failures_of(stats):
            if rows >= 2 * self._told_rows.get((source, reason), 0) and rows:
                self._told_rows[source, reason] = rows
                yield RowsFailed(at=at, step=stats["next_step"], source=source, reason=reason, rows=rows)

    def _saves(self, before: Stats | None, stats: Stats, at: float) -> Iterator[Happening]:
        now, then = stats["checkpoint"], before["checkpoint"] if before else None
        if now is None:
            return
        step = stats["next_step"]
        if now["snapshot"] is not None and (then is None or then["snapshot"] != now["snapshot"]):
            yield Saved(at=at, step=step, snapshot=now["snapshot"], of_step=now["step"], size_bytes=now["size_bytes"])
        if now["failure"] is not None and (then is None or now["failures"] > then["failures"]):
            yield SaveFailed(at=at, step=step, failures=now["failures"], why=now["failure"])

    def _progress(self, before: Stats | None, stats: Stats, at: float) -> Iterator[Happening]:
        was_moved = before is not None and (
            before["generation"] != stats["generation"] or before["term"] != stats["term"]
        )
        if self._reference is None or was_moved:
            self._reference = at, stats
            return
        since, then = self._reference
        if at - since < PROGRESS_EVERY_S:
            return
        self._reference = at, stats
        yield Progress(
            at=at,
            step=stats["next_step"],
            steps_per_s=(stats["next_step"] - then["next_step"]) / (at - since),
            waited=min(1.0, max(0.0, (stats["waited_s"] - then["waited_s"]) / (at - since))),
            fill=stats["fill"],
            tokens={name: one["tokens"] for name, one in stats["sources"].items()},
        )


def _loss(one: dict[str, Any]) -> tuple[str, str, str]:
    return one["at"], one["role"], one["name"]


def _decided(stats: Stats) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (stats["scaling"] or {}).get("decisions", [])
    return found
