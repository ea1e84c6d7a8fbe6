"""Decide one step after the other, from metadata alone.

Feed it metadata of rows in order (`observe`), ask for the next step (`plan`). What a step holds depends on weights,
lengths and progress, never on the mesh; where it goes is decided by the strategy's layout ops. No clock, no I/O.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from msd.core.checks import few, losses_of, whole_number
from msd.core.journal import Edit, Report, SetWeights, SkipRows, Suspend
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.errors import ConfigError, InputError, MsdError, PlanError, StateError
from msd.planner.adapted import FORCE, FORCED, FREE, Adapted, adapted, check_what_waits, removed_state
from msd.planner.check import check_plan
from msd.planner.edit_book import EditBook
from msd.planner.edits import Reweighted, check_edit, pending_state
from msd.planner.ending import has_step, repeat_tail, undelivered_note
from msd.planner.filling import Filling
from msd.planner.intake import SourceIntake
from msd.planner.lower import Membership, Place, lower
from msd.planner.mixture.mixer import Mixer
from msd.planner.piece import Piece
from msd.planner.progress import (
    MULTIPLES,
    carried,
    expect_geometry,
    first_needed,
    geometry_of,
    notes_of_geometry,
    snapshot,
    source_states,
    with_multiples_of,
)
from msd.planner.saved import SavedSteering, read_progress
from msd.planner.settings import PlannerSettings
from msd.planner.strategy import compile_strategy


@dataclass(frozen=True, slots=True)
class Starved:
    """The source that must be drawn next has not been observed far enough."""

    source: str
    ordinal: int
    """The row that is needed."""


class Planner:
    """Plans the steps of a run. Equal settings and equal tables give equal plans, however the tables were cut."""

    def __init__(self, settings: PlannerSettings) -> None:
        """Stand before the first step.

        Raises:
            ConfigError: If the strategy does not give a complete graph.
            InputError: If no source has a row.
        """
        if not any(terms.rows_per_epoch and terms.total_ordinals != 0 for terms in settings.sources):
            why = few((f"{terms.name} has {terms.lack}" for terms in settings.sources), most=3)
            raise InputError(f"no source has a row to give: {why}; check paths, splits, max_epochs and repetitions")
        self.settings = settings
        self.strategy = compile_strategy(settings)
        self.closing_notes: tuple[str, ...] = ()
        """Why the run ended and what stayed undelivered, once `plan` has returned None."""
        self._terms = tuple(sorted(settings.sources, key=lambda terms: terms.name))
        self._names = tuple(terms.name for terms in self._terms)
        self._written = {
            index: (terms.written, terms.rows_per_epoch)
            for index, terms in enumerate(self._terms)
            if terms.written is not None
        }
        self._place = Place.of(settings, self.strategy)
        self._geometry = geometry_of(settings, self.strategy)
        self._error: MsdError | None = None
        self._position: StateDict
        """At the boundary before the step that `plan` gives next."""
        self._filling: Filling | None = None
        self._is_over = False
        self._edits = EditBook(self._names)
        self._opening_notes: tuple[str, ...] = ()
        """Of a load, told with the step that follows it."""
        self._restart(self._new_intakes(), self._new_mixer([0] * len(self._names)))

    @property
    def step(self) -> int:
        """The step that `plan` gives next."""
        return self._step

    @property
    def idle_sources(self) -> frozenset[str]:
        """Sources that have no share in the next step, or have ended: no row of theirs will be drawn in it."""
        idle_S = self._mixer.idle(self._position, self._live_S, self._edits.reweighted)
        return frozenset(name for name, is_idle in zip(self._names, idle_S, strict=True) if is_idle)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each source that the next step begins with, of what the mixture counts."""
        return dict(zip(self._names, self._shares_at(self._live_S, self._edits.reweighted), strict=True))

    def shares_ahead(self, steps: int) -> list[dict[str, float]]:
        """Return the shares now, wherever they turn within the next steps, and after them, as far as that is known.

        By the schedule and by edits that wait; what feedback will say, and which sources end, nobody knows.
        """
        now = self._mixer.ahead(self._position, steps, self._live_S, self._edits.reweighted)
        to_come = self._edits.shares_ahead(self._step + steps, self._unended_S, self._shares_at)
        return [dict(zip(self._names, share_S, strict=True)) for share_S in (*now, *to_come)]

    @property
    def suspended(self) -> frozenset[str]:
        """Sources that are not drawn from now."""
        return self._edits.now.suspended

    @property
    def skips(self) -> tuple[SkipRows, ...]:
        """Rows that are passed over now or from some step on, as far as they are not consumed: hosts spare them."""
        return self._edits.skips

    def needs(self, source: str) -> int:
        """Return the ordinal of the next row of `source` that was not observed yet."""
        return self._intake(source).needs

    def drawn_to(self, source: str) -> int:
        """Return the first row of `source` that is not consumed, by the step that is being filled neither."""
        return self._intake(source).ordinal

    @property
    def is_skipping(self) -> bool:
        """Whether samples are drawn that are dropped: sources go on by more than a step holds."""
        return self._filling is not None and self._filling.is_dropping

    def observe(self, table: MetaTable) -> None:
        """Take metadata of the rows of a source that follow those observed.

        Raises:
            ValueError: If the table does not start at `needs(source)`, or cannot be true.
        """
        self._intake(table.source).observe(table, max_tokens=self.strategy.pack.longest)

    def plan(self) -> StepPlan | Starved | None:
        """Return the next step, or the row that is needed for it, or None when the run has ended.

        After `Starved`, observe that row (and as many after it as at hand) and call again: the step goes on where it
        stopped.

        Raises:
            BadSampleRateError: If a source fails too often.
            SourceError: If an epoch of a source gives no sample.
            EngineError: If a source with `on_exhausted: error` ends, or every source that has a weight is suspended.
            InputError: If every source that has a weight is empty, or a sample fits no sequence.
            PlanError: If a strategy or a cost function breaks a rule of plans.
        """
        if self._error is not None:
            raise self._error
        if self._is_over:
            return None
        try:
            if self._filling is None:
                self._filling = self._new_filling()
            lacking = self._filling.go_on()
            return self._close(self._filling) if lacking is None else Starved(lacking.terms.name, lacking.needs)
        except MsdError as error:
            self._error = error
            raise

    def state_dict(self) -> StateDict:
        """Return the position after the last plan, JSON-able; a step that is being filled is not part of it."""
        return deepcopy(self._position)

    def load_state_dict(self, state: StateDict) -> None:
        """Stand where `state` was saved, on this mesh. What was observed is forgotten.

        Multiples that are left to the mesh (`document_multiple` and `multiple_of` of `auto`) are those of the state.
        Weights and sources may be others: a new source starts at its first row with nothing owed; what one was owed
        that is gone goes to the others, and its samples that wait are dropped. Of a state with `force` the batch may
        differ too (see `msd.planner.adapted`).

        Raises:
            StateError: If a setting that the order depends on differs, naming it, or the state is not whole, or a
                multiple does not serve this mesh; nothing is changed then.
        """
        free = FREE | (FORCED if isinstance(state, dict) and state.get(FORCE) is True else frozenset())
        expect_geometry(state, self._geometry, but=free.union(MULTIPLES))
        settings = with_multiples_of(state, self.settings)
        strategy = self.strategy if settings is self.settings else compile_strategy(settings)
        geometry = geometry_of(settings, strategy)
        expect_geometry(state, geometry, but=free)
        there = adapted(read_progress(state), self._names)
        saved = there.saved
        reports = any(isinstance(edit, Report) for edit in there.pending)
        if (reports or saved.mixture is not None) and self._mixer.steering is None:
            raise StateError(
                "cannot resume: the state was saved with mixture.feedback, this run has none; set mixture.feedback"
            )
        intakes = self._new_intakes()
        mixer = self._new_mixer(source_states(saved, intakes), saved.mixture)
        carry = carried(saved, self._names, strategy.pack, tell_images_apart=strategy.encode is not None)
        check_what_waits(carry, self._names, strategy.pack)
        notes = [*there.notes, *notes_of_geometry(state, geometry)]
        self.settings, self.strategy, self._geometry = settings, strategy, geometry
        self._restart(intakes, mixer, carry=carry, step=saved.step, there=there)
        if there.owed:
            self._mixer.give(there.owed, self._position, self._live_S, self._edits.reweighted)
            self._position = self._snapshot()
        self._opening_notes = tuple(notes)

    def apply(self, edit: Edit) -> None:
        """Take an edit; from now on it is part of the position, and from its step on of what is planned.

        An edit for the step that is being filled takes the planner back to the boundary before it; what was observed
        stays. An edit that is equal to one that waits is the same one, told twice.

        Raises:
            ConfigError: If its step is planned already, naming the first that is not; or it names what does not exist;
                or it would leave nothing to draw, as far as that is known now.
        """
        if edit in self._edits.pending:
            return
        if self._error is not None:
            raise self._error
        totals = {terms.name: terms.total_ordinals for terms in self._terms}
        if isinstance(edit, Report) and self._mixer.steering is None:
            raise ConfigError("report: this run has no mixture.feedback; name a function there, or report nothing")
        check_edit(edit, totals, {terms.name: terms.rows_per_epoch for terms in self._terms})
        if self._is_over:
            raise ConfigError(
                f"the run has ended before step {self._step}: no edit can reach it; load an earlier state"
            )
        if edit.at_step < self._step:
            raise ConfigError(
                f"an edit for step {edit.at_step} comes too late: steps up to {self._step - 1} are planned; the first "
                f"that it can reach is {self._step}"
            )
        if edit.at_step == self._step and self._filling is not None:
            self._go_back()
        edits = self._edits.with_edit(edit)
        if isinstance(edit, Suspend | SetWeights):
            edits.expect_shares(edit, self._step, self._unended_S, self._shares_at)
        self._edits = edits
        self._position = {**self._position, **pending_state(edits.pending)}
        if edit.at_step == self._step:
            self._come_to_boundary()

    @staticmethod
    def first_needed(progress: StateDict) -> dict[str, int]:
        """Return for each source the first row that steps after `progress` may still hold."""
        return first_needed(progress)

    @property
    def losses(self) -> dict[str, float]:
        """The newest that was reported of each source; none without `mixture.feedback`."""
        return {} if self._mixer.steering is None else self._mixer.steering.losses

    def report(self, losses: Mapping[str, float], *, at_step: int) -> None:
        """Take what training saw of the sources, for `mixture.feedback`; part of the position from now on.

        Args:
            losses: By source; those of which nothing is known are left out.
            at_step: The step from which on these are the newest values: one that is not planned.

        Raises:
            ConfigError: If there is no feedback, the step is planned already, a source does not exist, or a loss is
                no finite number.
        """
        self.apply(Report(at_step=whole_number(at_step, name="report: at_step"), losses=losses_of(losses)))

    def _restart(
        self,
        intakes: list[SourceIntake],
        mixer: Mixer,
        *,
        carry: tuple[Piece, ...] = (),
        step: int = 0,
        there: Adapted | None = None,
    ) -> None:
        self._intakes = intakes
        self._by_name = {intake.terms.name: intake for intake in intakes}
        self._mixer = mixer
        self._carry = carry
        self._step = step
        self._edits = EditBook(self._names)
        if there is not None:
            self._edits = EditBook(self._names, there.in_force, there.pending)
        self._removed = None if there is None else there.saved.removed
        self._filling, self._is_over, self._error = None, False, None
        self.closing_notes = ()
        for intake in intakes:
            intake.pass_over(self._edits.in_force.skips_of(intake.terms.name))
        self._position = self._snapshot()
        self._come_to_boundary()

    def _go_back(self) -> None:
        """Stand at the boundary before the step that is being filled; what was observed stays so."""
        saved = read_progress(self._position)
        for intake in self._intakes:
            entry = saved.sources[intake.terms.name]
            if not intake.stands_at(entry):
                intake.load(entry)
        mixer = self._new_mixer([saved.sources[name].credit for name in self._names], saved.mixture)
        self._mixer, self._filling = mixer, None
        self._come_to_boundary()

    def _come_to_boundary(self) -> None:
        """Have the edits act that are due at the step that is planned next; before it is filled."""
        self._edits = self._edits.at(self._step, self._unended_S, self._shares_at)
        if self._mixer.steering is not None:
            self._mixer.steering.come_due(self._edits.reports)
        for source in self._edits.sources_that_skip:
            self._by_name[source].pass_over(self._edits.now.skips_of(source))

    def _shares_at(self, live_S: Sequence[bool], reweighted: Reweighted | None) -> Sequence[float]:
        return self._mixer.shares_at(self._position, live_S, reweighted)

    def _new_filling(self) -> Filling:
        """Begin to fill the step that is planned next."""
        ordinals = {intake.terms.name: intake.ordinal for intake in self._intakes}
        return Filling(
            self.strategy.pack,
            self._intakes,
            self._mixer,
            self._position,
            carry=self._carry,
            last=self.settings.batch.last,
            suspended=self._edits.now.suspended,
            edited=self._edits.reweighted,
            num_to_drop=self._edits.num_steps_to_drop,
            notes=[*self._opening_notes, *self._edits.notes(ordinals)],
        )

    def _close(self, filling: Filling) -> StepPlan | None:
        packer, last = filling.packer, self.settings.batch.last
        notes = filling.notes
        if filling.is_over:
            self._finish(notes, ())
            return None
        is_ending = not packer.is_closed
        if is_ending and not filling.is_stopped:
            notes.append(filling.nothing_to_draw())
        is_whole = not is_ending or packer.finish(drop=last == "drop")
        pieces = [piece for sequence in packer.sequences for piece in sequence]
        notes += [note for intake in self._intakes for note in intake.take_notes()]
        if is_ending and not (pieces and is_whole):
            self._finish(notes, (*pieces, *packer.carry))
            return None
        num_repeated = 0
        if packer.num_empty and last == "repeat_tail":
            num_repeated = repeat_tail(packer, pieces)
            notes.append(f"the last step repeats {num_repeated} of its own documents (batch.last: repeat_tail)")
        carry = tuple(packer.carry)
        is_last = is_ending and not has_step(self.strategy.pack.at(self._step + 1), carry, self._terms, last)
        if is_last and carry:
            notes.append(undelivered_note(carry))
        return self._lowered(filling, carry, num_repeated=num_repeated, is_last=is_last)

    def _lowered(self, filling: Filling, carry: tuple[Piece, ...], *, num_repeated: int, is_last: bool) -> StepPlan:
        """Return the checked plan and stand after it."""
        before = (self._step, self._carry, self._edits)
        step = self._step
        self._step, self._carry = step + 1, carry
        self._edits = self._edits.past(step, {one.terms.name: one.ordinal for one in self._intakes})
        self._mixer.end()
        progress = self._snapshot()
        membership = Membership(
            step=step,
            source_names=self._names,
            sequences=filling.packer.sequences,
            progress=progress,
            notes=tuple(filling.notes),
            num_repeated=num_repeated,
            is_last=is_last,
            written=self._written,
        )
        try:
            plan = lower(membership, self.strategy, self._place)
            broken = check_plan(plan, membership.columns[:, :5], filling.pack.limits)
            if broken:
                raise PlanError(f"the plan of step {step} breaks {len(broken)} rules: {'; '.join(broken)}")
        except MsdError:
            self._step, self._carry, self._edits = before
            raise
        self._position, self._filling, self._opening_notes = progress, None, ()
        for intake in self._intakes:
            intake.forget_observed()
        self._come_to_boundary()
        return plan

    def _finish(self, notes: Sequence[str], undelivered: tuple[Piece, ...]) -> None:
        self._is_over = True
        self.closing_notes = (*notes, *((undelivered_note(undelivered),) if undelivered else ()))

    @property
    def _unended_S(self) -> list[bool]:
        return [not intake.is_ended for intake in self._intakes]

    @property
    def _live_S(self) -> list[bool]:
        return [not intake.is_ended and intake.terms.name not in self._edits.now.suspended for intake in self._intakes]

    def _snapshot(self) -> StateDict:
        return {
            **snapshot(self._geometry, self._step, self._intakes, self._mixer, self._carry),
            **removed_state(self._removed),
            **self._edits.state_dict(),
        }

    def _new_mixer(self, credit_S: list[int], saved: SavedSteering | None = None) -> Mixer:
        return Mixer(self.strategy.mix.schedule, self.settings.mixture, credit_S, saved)

    def _new_intakes(self) -> list[SourceIntake]:
        keep_runs, keep_images = self.strategy.pack.may_cut, self.strategy.encode is not None
        return [
            SourceIntake(terms, index, keep_runs=keep_runs, keep_images=keep_images)
            for index, terms in enumerate(self._terms)
        ]

    def _intake(self, source: str) -> SourceIntake:
        if source not in self._by_name:
            raise ValueError(f"there is no source {source!r} (sources: {few(self._names)})")
        return self._by_name[source]
