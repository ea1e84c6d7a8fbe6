"""Sizes of a step: how many sequences, how long, and how they move over a run. Knows no mesh."""

from dataclasses import dataclass

from msd.errors import ConfigError
from msd.planner.config import BatchConfig, BatchStageConfig

AUTO_LOOKAHEAD = 32
"""Samples that may wait under `lookahead: auto`, or as many as the step has sequences."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Sizes of one step."""

    num_sequences: int
    sequence_length: int
    lookahead: int
    max_tokens: int | None
    """Real tokens that the step may hold; None where sequences are counted."""


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Which sizes hold at each step."""

    batch: BatchConfig
    multiple_of: int
    """Numbers of sequences are multiples of this."""

    def __post_init__(self) -> None:
        for where, size in self._counts():
            if size % self.multiple_of:
                near = max(1, round(size / self.multiple_of)) * self.multiple_of
                origin = ", which is dp * num_microbatches" if self.batch.multiple_of == "auto" else ""
                raise ConfigError(
                    f"{where} {size} is not a multiple of batch.multiple_of {self.multiple_of}{origin}; set it to one, "
                    f"for instance {near}"
                )
        self._check_tokens()

    @property
    def rounds(self) -> bool:
        """Whether numbers of sequences follow that were not named, and so depend on the multiple."""
        return self.batch.tokens_per_step is not None or any(stage.ramp for stage in self.batch.schedule)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every length that sequences have in some step."""
        stages = [stage.sequence_length for stage in self.batch.schedule if stage.sequence_length is not None]
        return tuple(sorted({self.batch.sequence_length, *stages}))

    @property
    def most_sequences(self) -> int:
        """A number that no step's sequences exceed, where sequences are counted or packed."""
        if self.batch.tokens_per_step is None:
            return max(size for _, size in self._counts())
        return max(self.multiple_of, max(self._targets()) // min(self.lengths))

    @property
    def most_tokens(self) -> int:
        """A number that the tokens of no step's sequences exceed."""
        return self.most_sequences * max(self.lengths)

    def at(self, step: int) -> StepSizes:
        """Return the sizes of a step.

        A stage starts at its step from the size that holds there, moves linearly, and is reached at `step + ramp`;
        between them numbers of sequences are rounded down to the multiple. The length changes at once.
        """
        length, size = self._length(step), self._size(step)
        by_tokens = self.batch.tokens_per_step is not None
        count = size // length if by_tokens else size
        num_sequences = max(1, count // self.multiple_of) * self.multiple_of
        lookahead = self.batch.packing.lookahead
        return StepSizes(
            num_sequences=num_sequences,
            sequence_length=length,
            lookahead=min(AUTO_LOOKAHEAD, num_sequences) if lookahead == "auto" else lookahead,
            max_tokens=size if by_tokens else None,
        )

    def __str__(self) -> str:
        stages = [
            f"{_target(stage) or ''} x {stage.sequence_length or ''} from step {stage.step}"
            for stage in self.batch.schedule
        ]
        budget = [] if self.batch.tokens_per_step is None else [f"tokens_per_step={self.batch.tokens_per_step}"]
        return ", ".join([*budget, f"multiple_of={self.multiple_of}", *stages])

    def _check_tokens(self) -> None:
        """Raise `ConfigError` if packed sequences, as few as the multiple allows, have more tokens than a step may."""
        if self.batch.tokens_per_step is None or self.batch.packing.method == "none":
            return
        stages = [step for stage in self.batch.schedule for step in (stage.step, stage.step + stage.ramp)]
        for step in (0, *stages):
            size, least = self._size(step), self.multiple_of * self._length(step)
            if size < least:
                raise ConfigError(
                    f"batch.tokens_per_step is {size} at step {step}, less than multiple_of * sequence_length = "
                    f"{self.multiple_of} * {self._length(step)} = {least}; set it to {least} or more"
                )

    def _length(self, step: int) -> int:
        length = self.batch.sequence_length
        for stage in self.batch.schedule:
            if stage.step <= step and stage.sequence_length is not None:
                length = stage.sequence_length
        return length

    def _size(self, step: int) -> int:
        """Return sequences or tokens of a step, before rounding."""
        before = target = self._targets()[0]
        start = ramp = 0

        def moved(to: int) -> int:
            return before + (target - before) * min(to - start, ramp) // ramp if ramp else target

        for stage in self.batch.schedule:
            aim = _target(stage)
            if stage.step > step:
                break
            if aim is not None:
                before, target, start, ramp = moved(stage.step), aim, stage.step, stage.ramp
        return moved(step)

    def _targets(self) -> list[int]:
        """Return the sizes that are named, the first step's first."""
        batch = self.batch
        first = batch.global_batch_size if batch.tokens_per_step is None else batch.tokens_per_step
        return [first, *(aim for stage in batch.schedule if (aim := _target(stage)) is not None)]

    def _counts(self) -> list[tuple[str, int]]:
        """Return the numbers of sequences that are named, with where they stand; none where tokens are counted."""
        if self.batch.tokens_per_step is not None:
            return []
        named = [("batch.global_batch_size", self.batch.global_batch_size)]
        for stage in self.batch.schedule:
            if stage.global_batch_size is not None:
                named.append((f"batch.schedule stage at step {stage.step}: global_batch_size", stage.global_batch_size))
        return named


def schedule_of(batch: BatchConfig, multiple_of: int) -> BatchSchedule | None:
    """Return the sizes by step of a configuration, or None where all steps have the same number of sequences."""
    if not batch.schedule and batch.tokens_per_step is None:
        return None
    return BatchSchedule(batch, multiple_of)


def _target(stage: BatchStageConfig) -> int | None:
    return stage.global_batch_size if stage.tokens_per_step is None else stage.tokens_per_step
