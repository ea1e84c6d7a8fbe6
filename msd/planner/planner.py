"""Decide one step after the other, from metadata alone.

Feed it metadata of rows in order (`observe`), ask for the next step (`plan`). What a step holds depends on weights,
lengths and progress, never on the mesh; where it goes is decided by the strategy's layout ops. No clock, no I/O.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

from msd.core.checks import few, whole_number
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.errors import ConfigError, EngineError, InputError, MsdError, PlanError, StateError
from msd.planner.check import check_plan
from msd.planner.ending import has_step, repeat_tail, undelivered_note
from msd.planner.fitting import fitted
from msd.planner.intake import SourceIntake
from msd.planner.lower import Membership, Place, lower
from msd.planner.mixture.mixer import Mixer
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack, Packer, begin
from msd.planner.progress import (
    MULTIPLES,
    carried,
    expect_geometry,
    first_needed,
    geometry_of,
    snapshot,
    source_states,
    with_multiples_of,
)
from msd.planner.saved import SavedSteering, read_progress
from msd.planner.settings import PlannerSettings, SourceTerms
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
            why = few((f"{terms.name} has {_lacking(terms)}" for terms in settings.sources), most=3)
            raise InputError(f"no source has a row to give: {why}; check paths, splits, max_epochs and repetitions")
        self.settings = settings
        self.strategy = compile_strategy(settings)
        self.closing_notes: tuple[str, ...] = ()
        """Why the run ended and what stayed undelivered, once `plan` has returned None."""
        self._terms = tuple(sorted(settings.sources, key=lambda terms: terms.name))
        self._names = tuple(terms.name for terms in self._terms)
        self._place = Place.of(settings, self.strategy)
        self._geometry = geometry_of(settings, self.strategy)
        self._error: MsdError | None = None
        self._position: StateDict
        """At the boundary before the step that `plan` gives next."""
        self._restart(self._new_intakes(), self._new_mixer([0] * len(self._names)), carry=(), step=0)

    @property
    def step(self) -> int:
        """The step that `plan` gives next."""
        return self._step

    @property
    def idle_sources(self) -> frozenset[str]:
        """Sources that have no share in the next step, or have ended: no row of theirs will be drawn in it."""
        idle_S = self._mixer.idle(self._position, self._live_S)
        return frozenset(name for name, is_idle in zip(self._names, idle_S, strict=True) if is_idle)

    def needs(self, source: str) -> int:
        """Return the ordinal of the next row of `source` that was not observed yet."""
        return self._intake(source).needs

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
            EngineError: If a source with `on_exhausted: error` ends.
            InputError: If every source that has a weight is empty, or a sample fits no sequence.
            PlanError: If a strategy or a cost function breaks a rule of plans.
        """
        if self._error is not None:
            raise self._error
        if self._is_over:
            return None
        try:
            starved = self._fill()
            return starved if starved is not None else self._close()
        except MsdError as error:
            self._error = error
            raise

    def state_dict(self) -> StateDict:
        """Return the position after the last plan, JSON-able; a step that is being filled is not part of it."""
        return deepcopy(self._position)

    def load_state_dict(self, state: StateDict) -> None:
        """Stand where `state` was saved, on this mesh. What was observed is forgotten.

        Multiples that are left to the mesh (`document_multiple` and `multiple_of` of `auto`) are those of the state.

        Raises:
            StateError: If a setting that the order depends on differs, naming it, or the state is not whole, or a
                multiple does not serve this mesh; nothing is changed then.
        """
        expect_geometry(state, self._geometry, but=MULTIPLES)
        settings = with_multiples_of(state, self.settings)
        strategy = self.strategy if settings is self.settings else compile_strategy(settings)
        geometry = geometry_of(settings, strategy)
        expect_geometry(state, geometry)
        saved = read_progress(state)
        if saved.mixture is not None and self._mixer.steering is None:
            raise StateError(
                "cannot resume: the state was saved with mixture.feedback, this run has none; set mixture.feedback"
            )
        intakes = self._new_intakes()
        mixer = self._new_mixer(source_states(saved, intakes), saved.mixture)
        carry = carried(saved, self._names, strategy.pack, tell_images_apart=strategy.encode is not None)
        self.settings, self.strategy, self._geometry = settings, strategy, geometry
        self._restart(intakes, mixer, carry=carry, step=saved.step)

    @staticmethod
    def first_needed(progress: StateDict) -> dict[str, int]:
        """Return for each source the first row that steps after `progress` may still hold."""
        return first_needed(progress)

    def report(self, losses: Mapping[str, float], *, at_step: int) -> None:
        """Take what training saw of the sources, for `mixture.feedback`; part of the position from now on.

        Args:
            losses: By source; those of which nothing is known are left out.
            at_step: The step from which on these are the newest values: one of which nothing is drawn yet.

        Raises:
            ConfigError: If there is no feedback, the step is drawn already, a source does not exist, or a loss is no
                finite number.
        """
        if self._mixer.steering is None:
            raise ConfigError("report: this run has no mixture.feedback; name a function there, or report nothing")
        first_step = self._step + (self._packer is not None)
        self._mixer.steering.report(
            losses, at_step=whole_number(at_step, name="report: at_step"), first_step=first_step
        )
        self._position = {**self._position, "mixture": self._mixer.steering.state_dict()}

    def _restart(self, intakes: list[SourceIntake], mixer: Mixer, *, carry: tuple[Piece, ...], step: int) -> None:
        self._intakes = intakes
        self._by_name = {intake.terms.name: intake for intake in intakes}
        self._mixer = mixer
        self._carry = carry
        self._step = step
        self._packer: Packer | None = None
        self._pack = self.strategy.pack.at(step)
        self._notes: list[str] = []
        self._is_over = False
        self._is_stopped = any(intake.stops_the_run for intake in intakes)
        self._error = None
        self.closing_notes = ()
        self._position = self._snapshot()

    def _fill(self) -> Starved | None:
        """Draw until the step closes, the run ends, or a row is missing."""
        if self._packer is None:
            self._notes = self._empty_sources() if self._step == 0 else []
            pack = self.strategy.pack.at(self._step)
            carry = self._fitted(self._carry, pack)
            self._packer = begin(pack, carry, self._step)
            self._mixer.begin(self._position, self._live_S, pack, carry)
            self._check_shares()
            self._pack = pack
        packer, mixer, credits = self._packer, self._mixer, self._mixer.credits
        needs_age = self._pack.needs_age
        while not packer.is_closed and not self._is_stopped and credits.has_live:
            source = credits.largest()
            intake = self._intakes[source]
            piece = intake.draw(self._pack)
            if piece is not None:
                mixer.take(source, piece)
                if needs_age:
                    piece = piece._replace(drawn=self._step)
                packer.offer(piece)
            elif intake.is_ended:
                self._end(source)
            else:
                return Starved(intake.terms.name, intake.needs)
        return None

    def _end(self, source: int) -> None:
        """Act on the end of a source: `stop`, `drop` or `error`."""
        intake = self._intakes[source]
        name, rows = intake.terms.name, intake.terms.total_ordinals
        if intake.terms.end == "error":
            raise EngineError(
                f"source {name!r} is exhausted at step {self._step} after {rows} rows ({intake.num_samples} samples) "
                "and on_exhausted is error; raise its max_epochs, or set on_exhausted to stop or drop"
            )
        if intake.terms.end == "drop":
            self._notes.append(f"source {name!r} ended after {rows} rows; its share goes to the others")
            self._mixer.drop(source)
            self._check_shares()
        else:
            self._is_stopped = True
            self._notes.append(f"source {name!r} ended after {rows} rows and ends the run")

    def _close(self) -> StepPlan | None:
        packer = self._packer
        assert packer is not None
        last = self.settings.batch.last
        is_ending = not packer.is_closed
        if is_ending and not self._is_stopped:
            self._notes.append(self._nothing_to_draw())
        is_whole = not is_ending or packer.finish(drop=last == "drop")
        pieces = [piece for sequence in packer.sequences for piece in sequence]
        self._notes += [note for intake in self._intakes for note in intake.take_notes()]
        if is_ending and not (pieces and is_whole):
            self._finish((*pieces, *packer.carry))
            return None
        num_repeated = 0
        if packer.num_empty and last == "repeat_tail":
            num_repeated = repeat_tail(packer, pieces)
            self._notes.append(f"the last step repeats {num_repeated} of its own documents (batch.last: repeat_tail)")
        carry = tuple(packer.carry)
        is_last = is_ending and not self._has_step_after(carry)
        if is_last and carry:
            self._notes.append(undelivered_note(carry))
        return self._lowered(packer, carry, num_repeated=num_repeated, is_last=is_last)

    def _has_step_after(self, carry: tuple[Piece, ...]) -> bool:
        """Return whether what is carried gives another step when nothing more is drawn."""
        pack = self.strategy.pack.at(self._step + 1)
        fitting, _ = fitted(carry, pack, self._terms)
        return has_step(pack, fitting, self.settings.batch.last)

    def _fitted(self, carry: tuple[Piece, ...], pack: Pack) -> list[Piece]:
        """Return what was carried as the sequences of a step can take it."""
        fitting, lost = fitted(carry, pack, self._terms)
        self._notes += lost
        return fitting

    def _lowered(self, packer: Packer, carry: tuple[Piece, ...], *, num_repeated: int, is_last: bool) -> StepPlan:
        """Return the checked plan and stand after it."""
        step, before = self._step, self._carry
        self._step, self._carry = step + 1, carry
        self._mixer.end(step)
        progress = self._snapshot()
        membership = Membership(
            step=step,
            source_names=self._names,
            sequences=packer.sequences,
            progress=progress,
            notes=tuple(self._notes),
            num_repeated=num_repeated,
            is_last=is_last,
        )
        try:
            plan = lower(membership, self.strategy, self._place)
            broken = check_plan(plan, membership.columns[:, :5], self._pack.limits)
            if broken:
                raise PlanError(f"the plan of step {step} breaks {len(broken)} rules: {'; '.join(broken)}")
        except MsdError:
            self._step, self._carry = step, before
            raise
        self._position, self._packer = progress, None
        return plan

    def _finish(self, undelivered: tuple[Piece, ...]) -> None:
        self._is_over = True
        self.closing_notes = (*self._notes, *((undelivered_note(undelivered),) if undelivered else ()))

    @property
    def _live_S(self) -> list[bool]:
        return [not intake.is_ended for intake in self._intakes]

    def _nothing_to_draw(self) -> str:
        idle = [intake.terms.name for intake in self._intakes if not intake.is_ended]
        others = f"; {few(idle)} {'has' if len(idle) == 1 else 'have'} none there" if idle else ""
        return f"every source with a share in step {self._step} has ended, and with them the run{others}"

    def _check_shares(self) -> None:
        if self._mixer.credits.has_live or any(intake.is_ended and not intake.is_empty for intake in self._intakes):
            return
        empty = few(intake.terms.name for intake in self._intakes if intake.is_empty)
        raise InputError(
            f"step {self._step}: every source with a weight is empty (empty are {empty}); give a source with rows a "
            "weight"
        )

    def _empty_sources(self) -> list[str]:
        return [
            f"source {intake.terms.name!r} has {_lacking(intake.terms)} and is left out"
            for intake in self._intakes
            if intake.is_empty
        ]

    def _snapshot(self) -> StateDict:
        return snapshot(self._geometry, self._step, self._intakes, self._mixer, self._carry)

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


def _lacking(terms: SourceTerms) -> str:
    """Return what is there of a source that has no row to give."""
    if not terms.rows_per_epoch:
        return "no rows"
    return f"no whole row under max_epochs or mixture.repetitions ({terms.rows_per_epoch} rows an epoch)"
