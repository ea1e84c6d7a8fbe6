"""One step being filled: samples are drawn by weight until it closes, the run ends, or a row is missing."""

# S = sources, in order of name.

from collections.abc import Collection, Sequence

from msd.core.checks import few
from msd.core.state import StateDict
from msd.errors import EngineError, InputError
from msd.planner.edits import Reweighted
from msd.planner.fitting import fitted
from msd.planner.intake import SourceIntake
from msd.planner.mixture.mixer import Mixer
from msd.planner.piece import Piece, documents_of
from msd.planner.primitives.pack import Pack, Packer, begin


class Filling:
    """Fills one step, and before it those whose samples are dropped.

    A step that is dropped has the weights and sizes of the step whose samples they would have been; the one that is
    filled after them has those of its own number.
    """

    packer: Packer
    """Of the step, once nothing is left to drop."""
    pack: Pack
    """With the sizes of the step."""

    def __init__(
        self,
        pack: Pack,
        intakes: Sequence[SourceIntake],
        mixer: Mixer,
        position: StateDict,
        *,
        carry: Sequence[Piece],
        last: str,
        suspended: Collection[str] = (),
        edited: Reweighted | None = None,
        num_to_drop: int = 0,
        notes: Sequence[str] = (),
    ) -> None:
        """Stand at the boundary before the step.

        Args:
            pack: Op of the graph.
            intakes: Sources in order of name.
            mixer: At the boundary.
            position: The planner's, at the boundary.
            carry: Samples that wait there.
            last: What becomes of a step that is not full: `drop`, `pad` or `repeat_tail`.
            suspended: Sources that are not drawn from.
            edited: Weights that an edit set.
            num_to_drop: Steps whose samples are drawn and dropped first.
            notes: What is to be told of the step already.

        Raises:
            InputError: If every source that has a weight is empty.
            EngineError: If every source that has a weight is suspended.
        """
        self.notes = [*(_empty_sources(intakes) if position["step"] == 0 else []), *notes]
        self.is_over = False
        """Whether the data ended before the last of the steps that are dropped was full."""
        self._op = pack
        self._intakes = intakes
        self._mixer = mixer
        self._position = position
        self._step = int(position["step"])
        self._last = last
        self._suspended = suspended
        self._edited = edited
        self._is_stopped = any(intake.stops_the_run for intake in intakes)
        self._num_dropped, self._num_left = 0, num_to_drop
        self._documents = self._tokens = 0
        if num_to_drop and pack.needs_age:
            # Ages go on over the steps that are dropped, and the step keeps its number.
            carry = [piece._replace(drawn=piece.drawn - num_to_drop) for piece in carry]
        self._begin(carry)

    def go_on(self) -> SourceIntake | None:
        """Fill the step, or return the source whose next row must be observed for that.

        Raises:
            MsdError: As `Planner.plan` says.
        """
        while not self.is_over:
            lacking = self._draw()
            if lacking is not None or not self._num_left:
                return lacking
            self._drop()
        return None

    def nothing_to_draw(self) -> str:
        """Return why no source can be drawn any more."""
        idle = [intake.terms.name for intake in self._intakes if not intake.is_ended]
        others = f"; {few(idle)} {'has' if len(idle) == 1 else 'have'} none there" if idle else ""
        return f"every source with a share in step {self._step} has ended, and with them the run{others}"

    @property
    def is_dropping(self) -> bool:
        """Whether what is drawn is dropped."""
        return self._num_left > 0

    @property
    def is_stopped(self) -> bool:
        """Whether the end of a source has ended the run."""
        return self._is_stopped

    @property
    def _live_S(self) -> list[bool]:
        return [not intake.is_ended and intake.terms.name not in self._suspended for intake in self._intakes]

    def _begin(self, carry: Sequence[Piece]) -> None:
        """Begin the step, or the next of those that are dropped."""
        number = self._step + self._num_dropped if self._num_left else self._step
        self.pack = self._op.at(number)
        fitting, lost = fitted(carry, self.pack, [intake.terms for intake in self._intakes])
        self.notes += lost
        self.packer = begin(self.pack, fitting, self._age_step)
        position = self._position
        if self._num_dropped:
            sources = {intake.terms.name: intake.state_dict() for intake in self._intakes}
            position = {**position, "sources": sources, "step": number}
        self._mixer.begin(position, self._live_S, self.pack, fitting, self._edited, asks=not self._num_left)
        self._check_shares()

    @property
    def _age_step(self) -> int:
        """The step that ages are counted to."""
        return self._step - self._num_left

    def _draw(self) -> SourceIntake | None:
        packer, mixer, credits = self.packer, self._mixer, self._mixer.credits
        needs_age, age_step = self.pack.needs_age, self._age_step
        while not packer.is_closed and not self._is_stopped and credits.has_live:
            source = credits.largest()
            intake = self._intakes[source]
            piece = intake.draw(self.pack)
            if piece is not None:
                mixer.take(source, piece)
                if needs_age:
                    piece = piece._replace(drawn=age_step)
                packer.offer(piece)
            elif intake.is_ended:
                self._end(source)
            else:
                return intake
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
            self.notes.append(f"source {name!r} ended after {rows} rows; its share goes to the others")
            self._mixer.drop(source)
            self._check_shares()
        else:
            self._is_stopped = True
            self.notes.append(f"source {name!r} ended after {rows} rows and ends the run")

    def _drop(self) -> None:
        """Drop what the step holds that was filled, and begin the next; or find that the data has ended."""
        packer = self.packer
        is_ending = not packer.is_closed
        is_whole = not is_ending or packer.finish(drop=self._last == "drop")
        pieces = [piece for sequence in packer.sequences for piece in sequence]
        if is_ending and not (pieces and is_whole):
            if not self._is_stopped:
                self.notes.append(self.nothing_to_draw())
            self.notes.append(f"the data ended after {self._num_dropped} of the steps that were to be skipped")
            self.is_over = True
            return
        documents = documents_of(pieces)
        self._documents += len(documents)
        self._tokens += sum(document.length for document in documents)
        self._num_dropped += 1
        self._num_left -= 1
        if not self._num_left:
            self.notes.append(
                f"{self._num_dropped} steps are skipped: {self._documents} documents of {self._tokens} tokens are "
                "drawn and dropped"
            )
        self._begin(list(packer.carry))

    def _check_shares(self) -> None:
        if self._mixer.credits.has_live:
            return
        shares_S = self._mixer.shares_over([not intake.is_ended for intake in self._intakes])
        held = [i.terms.name for i, share in zip(self._intakes, shares_S, strict=True) if share]
        if held:
            raise EngineError(
                f"step {self._step}: every source that could be drawn is suspended ({few(held)}); go on from the last "
                "saved state and resume one of them before this step"
            )
        if any(intake.is_ended and not intake.is_empty for intake in self._intakes):
            return
        empty = few(intake.terms.name for intake in self._intakes if intake.is_empty)
        raise InputError(
            f"step {self._step}: every source with a weight is empty (empty are {empty}); give a source with rows a "
            "weight"
        )


def _empty_sources(intakes: Sequence[SourceIntake]) -> list[str]:
    return [
        f"source {intake.terms.name!r} has {intake.terms.lack} and is left out" for intake in intakes if intake.is_empty
    ]
