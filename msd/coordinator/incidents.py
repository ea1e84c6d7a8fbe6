"""What happens to a run besides rows and steps: edits, rows that end processes, waits that are too long."""

from collections.abc import Iterable

import msgspec

from msd.coordinator.commands import Avoid, Command, Isolate, Journal, Warn
from msd.coordinator.course import Course
from msd.coordinator.edits import Edits
from msd.coordinator.hosts import Hosts
from msd.coordinator.stalls import Watch
from msd.coordinator.standing import Stall
from msd.coordinator.suspects import RowAt, Suspects
from msd.core.journal import Edit, SkipRows, Suspend
from msd.errors import ConfigError, DeadlineError, EngineError
from msd.planner.planner import Starved


class Incidents:
    """Decides what becomes of the run; `Course.go_on` is called after."""

    def __init__(self, course: Course, hosts: Hosts, edits: Edits, suspects: Suspects, watch: Watch) -> None:
        """Take the parts that are looked at and changed."""
        self._course = course
        self._hosts = hosts
        self._edits = edits
        self._suspects = suspects
        self._watch = watch
        self._put_off: dict[tuple[str, int], str] = {}

    @property
    def stall(self) -> Stall | None:
        """The row that planning waits for, and for how long."""
        return self._watch.stall

    def begin(self) -> None:
        """Forget what was waited for: a generation begins."""
        self._watch.begin()
        self._put_off.clear()

    def edit(self, edit: Edit, *, move_late: bool) -> tuple[Edit, Journal]:
        """Return an edit as it is journalled, and what makes it durable; see `Coordinator.edit`."""
        end, first_free = self._course.planning.end, self._course.first_free()
        if end is not None:
            raise ConfigError(f"an edit for step {edit.at_step}: the run ends before step {end}")
        if first_free is None:
            raise ConfigError(
                f"an edit for step {edit.at_step}: the planner was replaced, and no rank has said yet where it stands; "
                "ask again once one is connected"
            )
        if edit.at_step < first_free:
            if not move_late:
                raise ConfigError(
                    f"an edit for step {edit.at_step} comes too late: the first step that it can reach is {first_free}"
                )
            edit = msgspec.structs.replace(edit, at_step=first_free)
        self._course.expect_edit(edit)
        return self._journal(edit, is_own=False)

    def journalled(self, through: int) -> list[Command]:
        """Have edits that are durable take effect."""
        commands: list[Command] = []
        for edit in self._edits.take(through):
            self._course.planning.main.note(edit)
            if isinstance(edit, SkipRows) and edit.reason == "killed":
                commands.append(_avoid(edit))
                self._course.ask_row_again(edit.source, edit.first)
        return commands

    def not_journalled(self, number: int, error: Exception) -> None:
        """Drop an edit that could not be made durable.

        Raises:
            Exception: `error`, if the run cannot go on without it.
        """
        if self._edits.drop(number) is not None:
            raise error

    def killed(self) -> list[SkipRows]:
        """Return the rows that are never to be tried again: by this generation's journal, and by the position.

        Rows that somebody else wants skipped are tried: what was drawn of them before that must stay the same.
        """
        journal = [edit for edit in self._edits.all if isinstance(edit, SkipRows)]
        skips = [*journal, *(skip for skip in self._course.planning.main.skips if skip not in journal)]
        return [skip for skip in skips if skip.reason == "killed"]

    def num_killed(self) -> dict[str, int]:
        """Return how many rows of each source are never to be tried again."""
        found: dict[str, int] = {}
        for skip in self.killed():
            found[skip.source] = found.get(skip.source, 0) + skip.last - skip.first + 1
        return found

    def told_to_hosts(self) -> list[Command]:
        """Return what a loader host must know of rows that was told nothing."""
        isolated = self._suspects.isolated
        return [*map(_avoid, self.killed()), *([Isolate(isolated)] if isolated else [])]

    def rows_ended(self, rows: Iterable[RowAt]) -> list[Command]:
        """Put rows under suspicion that were in hand when a process ended."""
        fresh = self._suspects.ended(rows)
        return [Isolate(fresh)] if fresh else []

    def row_killed(self, source: str, ordinal: int, how: str) -> list[Command]:
        """Have a row never tried again that ended a process while it was alone there."""
        for killed in self.killed():
            if killed.source == source and killed.first <= ordinal <= killed.last:
                self._course.ask_row_again(source, ordinal)
                return [_avoid(killed)]
        main = self._course.planning.main
        if ordinal < main.consumed(source):
            if not self._course.is_owed(source, ordinal):
                # Of a request from before the run moved: nothing that is planned waits for it.
                return []
            place = self._course.orders[source].place_of(ordinal)
            raise EngineError(
                f"source {source!r}: {place.shard} row {place.row} (ordinal {ordinal}) is part of a planned step and "
                f"ended its process when it was made again ({how}); repair the row or its transforms, and start again "
                "from the last saved state"
            )
        step = self._course.first_free()
        if step is None:
            # Whoever asked for the row waits for it until it is journalled: the news must not be lost.
            self._put_off[source, ordinal] = how
            return []
        skip = SkipRows(
            at_step=step, who="on_error", source=source, first=ordinal, last=ordinal, reason="killed", how=how
        )
        return [self._journal(skip, is_own=True)[1]]

    def time_passed(self, now_s: float) -> list[Command]:
        """Act on what is waited for too long.

        Raises:
            EngineError: If no loader host came until the deadline, a source does not deliver that says `stop`, or a
                row of a planned step ended its process.
        """
        return [*self._rows_put_off(), *self._waited(now_s)]

    def _rows_put_off(self) -> list[Command]:
        """Have rows never tried again of which was heard before any rank said where it stands."""
        if not self._put_off or self._course.first_free() is None:
            return []
        rows, self._put_off = self._put_off, {}
        return [command for (source, ordinal), how in rows.items() for command in self.row_killed(source, ordinal, how)]

    def _waited(self, now_s: float) -> list[Command]:
        course, orphaned_by = self._course, self._hosts.orphaned_by
        if self._watch.is_orphaned_too_long(now_s, orphaned_by):
            raise EngineError(
                f"loader host {orphaned_by} is gone and no other is left; start the run again from the last saved "
                f"state{course.suspects()}"
            )
        starved = course.planning.main.starved if orphaned_by is None else None
        inherited = self._watch.inherited
        if inherited is not None and course.planning.main.consumed(inherited.source) > inherited.ordinal:
            self._watch.inherited = None
        waits_for = course.waits_for
        match self._watch.look(now_s, waits_for, starved):
            case "warn":
                return [Warn(f"planning has waited {self._watch.waited_s(now_s):.0f} s for {waits_for}")]
            case "suspend" if starved is not None:
                return self._suspend(starved, now_s)
            case "stop" if starved is not None:
                raise DeadlineError(
                    f"source {starved.source!r} did not deliver row {starved.ordinal} within "
                    f"{self._watch.waited_s(now_s):.0f} s and on_stall.then is stop; see to its storage, or set "
                    "on_stall to wait or suspend"
                )
        return []

    def _suspend(self, starved: Starved, now_s: float) -> list[Command]:
        waited = f"row {starved.ordinal} did not come within {self._watch.waited_s(now_s):.0f} s"
        step = self._course.planning.main.step
        if step != self._course.first_free():
            if not self._watch.put_off():
                return []
            return [Warn(
                f"source {starved.source!r}: {waited}; step {step} may have been planned with it before the planner "
                "was replaced, so it is suspended only once every rank has said that it does not have that step"
            )]  # fmt: skip
        suspend = Suspend(at_step=step, who="on_stall", source=starved.source, reason=waited)
        try:
            self._course.expect_edit(suspend)
        except ConfigError as error:
            return [Warn(f"source {starved.source!r}: {waited}, and it cannot be suspended: {error}")]
        warning = Warn(
            f"source {starved.source!r} is suspended from step {step} on: {waited}; resume it once it delivers again"
        )
        return [self._journal(suspend, is_own=True)[1], warning]

    def _journal(self, edit: Edit, *, is_own: bool) -> tuple[Edit, Journal]:
        first_free = self._course.first_free()
        assert first_free is not None, "whoever asks has looked"
        noted = msgspec.structs.replace(edit, noted_at=first_free)
        return noted, self._edits.ask(noted, is_own=is_own)


def _avoid(skip: SkipRows) -> Avoid:
    return Avoid(skip.source, skip.first, skip.last, skip.reason)
