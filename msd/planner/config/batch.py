"""Geometry of a step, and how samples become sequences."""

from typing import Literal

from msd.core.checks import check_range
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

MAX_SEQUENCE_LENGTH = 1 << 24
MAX_SEQUENCES = 1 << 22
MAX_LOOKAHEAD = 1 << 20
MAX_TOKENS = 1 << 40
MAX_STEP = 1 << 53


class PackingConfig(ConfigStruct, frozen=True, kw_only=True):
    """How samples become sequences."""

    method: Literal["best_fit", "first_fit_decreasing", "concat", "none"] = "best_fit"
    lookahead: int | Literal["auto"] = "auto"
    """Samples that may wait for the next step; auto is min(32, global_batch_size)."""
    objective: Literal["fill", "cost"] = "fill"
    """Of first_fit_decreasing: the first sequence with room, or the one whose attention is least."""
    max_age: int = 2
    """Steps that a sample may wait, at least 2 for first_fit_decreasing."""

    def __post_init__(self) -> None:
        if self.lookahead != "auto" and self.lookahead < 1:
            raise ConfigError(f"batch.packing.lookahead must be auto or at least 1 sample, got {self.lookahead}")
        if self.lookahead != "auto":
            check_range("batch.packing.lookahead", self.lookahead, 1, MAX_LOOKAHEAD)
        least = 2 if self.method == "first_fit_decreasing" else 1
        check_range("batch.packing.max_age", self.max_age, least, MAX_SEQUENCES, f"{self.method} may need {least}")
        if self.objective == "cost" and self.method != "first_fit_decreasing":
            raise ConfigError(
                f"batch.packing.objective cost needs samples in hand, which {self.method} has not; set method: "
                "first_fit_decreasing"
            )


class LimitsConfig(ConfigStruct, frozen=True, kw_only=True):
    """The most that a sequence may hold besides its tokens; null does not limit."""

    patches: int | None = None
    """Image patches, before merging."""
    image_tokens: int | None = None
    """Image placeholders: what the backbone sees of images."""
    images: int | None = None
    attention: int | None = None
    """Sum of the squared lengths of its documents."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) is not None:
                check_range(f"batch.limits.{name}", getattr(self, name), 1, 1 << 60, "null sets no limit")


class BatchStageConfig(ConfigStruct, frozen=True, kw_only=True):
    """New sizes from a step on; what a stage leaves out stays."""

    step: int
    sequence_length: int | None = None
    global_batch_size: int | None = None
    tokens_per_step: int | None = None
    ramp: int = 0
    """Steps over which the number of sequences or tokens moves, linearly, from the one before: reached at
    `step + ramp`. The length changes at once."""

    def __post_init__(self) -> None:
        where = f"batch.schedule stage at step {self.step}"
        check_range("batch.schedule: step", self.step, 0, MAX_STEP)
        check_range(f"{where}: ramp", self.ramp, 0, MAX_STEP)
        sizes = (self.sequence_length, self.global_batch_size, self.tokens_per_step)
        if sizes == (None, None, None):
            raise ConfigError(
                f"{where} changes nothing; give it a sequence_length, global_batch_size or tokens_per_step"
            )
        if self.ramp and self.global_batch_size is None and self.tokens_per_step is None:
            raise ConfigError(
                f"{where} has a ramp, but sequence_length changes at once; give it the global_batch_size or "
                "tokens_per_step that the ramp leads to, or leave ramp out"
            )
        if self.sequence_length is not None:
            check_range(f"{where}: sequence_length", self.sequence_length, 2, MAX_SEQUENCE_LENGTH)
        if self.global_batch_size is not None:
            check_range(f"{where}: global_batch_size", self.global_batch_size, 1, MAX_SEQUENCES)
        if self.tokens_per_step is not None:
            check_range(f"{where}: tokens_per_step", self.tokens_per_step, 1, MAX_TOKENS)


class BatchConfig(ConfigStruct, frozen=True, kw_only=True):
    """Geometry of a step."""

    sequence_length: int = 4096
    global_batch_size: int = 64
    """Sequences per optimizer step over all ranks; divides by dp * num_microbatches."""
    tokens_per_step: int | None = None
    """Tokens per optimizer step over all ranks, in place of `global_batch_size`; the number of sequences follows."""
    multiple_of: int | Literal["auto"] = "auto"
    """Numbers of sequences that follow from tokens, or lie on a ramp, are rounded down to a multiple of this; auto is
    dp * num_microbatches of the mesh that the run started with."""
    schedule: list[BatchStageConfig] = []
    """Other sizes from a step on."""
    packing: PackingConfig = PackingConfig()
    limits: LimitsConfig = LimitsConfig()
    oversize: Literal["error", "drop"] = "error"
    """A sample that no sequence can hold, for its images or a limit: stop the run, or leave it out, counted."""
    document_multiple: int | Literal["auto"] = "auto"
    """Documents are padded to a multiple of this; auto is 2 * cp (1 without context parallelism), times tp under
    sequence parallelism."""
    sequence_parallel: bool = False
    """The trainer shards sequences over tp as well."""
    pad_token_id: int = 0
    last: Literal["drop", "pad", "repeat_tail"] = "drop"
    """The last step of finite data: left out, filled with empty sequences, or filled with its own samples again."""
    slice: Literal["zigzag", "headtail", "none"] = "zigzag"
    """With cp > 1: each rank gets its slice of every document, its slice of every sequence, or the whole row for a
    trainer that slices itself; see `msd.core.slices`."""

    def __post_init__(self) -> None:
        if self.sequence_length < 2:
            raise ConfigError(f"batch.sequence_length must be at least 2 tokens, got {self.sequence_length}")
        if self.global_batch_size < 1:
            raise ConfigError(f"batch.global_batch_size must be at least 1 sequence, got {self.global_batch_size}")
        check_range("batch.sequence_length", self.sequence_length, 2, MAX_SEQUENCE_LENGTH)
        check_range("batch.global_batch_size", self.global_batch_size, 1, MAX_SEQUENCES)
        if self.pad_token_id < 0:
            raise ConfigError(f"batch.pad_token_id must be a token id, 0 or more, got {self.pad_token_id}")
        check_range("batch.pad_token_id", self.pad_token_id, 0, (1 << 31) - 1, "token ids are int32")
        if self.document_multiple != "auto" and not 1 <= self.document_multiple <= self.sequence_length:
            raise ConfigError(
                f"batch.document_multiple must be auto or lie in [1, sequence_length={self.sequence_length}], "
                f"got {self.document_multiple}"
            )
        if self.tokens_per_step is not None:
            check_range("batch.tokens_per_step", self.tokens_per_step, 1, MAX_TOKENS)
        if self.multiple_of != "auto":
            check_range("batch.multiple_of", self.multiple_of, 1, MAX_SEQUENCES)
        self._check_schedule()

    def _check_schedule(self) -> None:
        steps = [stage.step for stage in self.schedule]
        if steps != sorted(set(steps)):
            raise ConfigError(f"batch.schedule must be in increasing order of step, got steps {steps}")
        counted, other, elsewhere = "global_batch_size", "tokens_per_step", ", or tokens_per_step in batch"
        if self.tokens_per_step is not None:
            counted, other, elsewhere = other, counted, ""
        for stage in self.schedule:
            if getattr(stage, other) is not None:
                raise ConfigError(
                    f"batch.schedule stage at step {stage.step} sets {other}, but the run counts {counted} from its "
                    f"start; set {counted} in the stage{elsewhere}"
                )
