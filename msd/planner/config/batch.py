"""Geometry of a step, and how samples become sequences."""

from typing import Literal

from msd.core.checks import check_range
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

MAX_SEQUENCE_LENGTH = 1 << 24
MAX_SEQUENCES = 1 << 22
MAX_LOOKAHEAD = 1 << 20


class PackingConfig(ConfigStruct, frozen=True, kw_only=True):
    """How samples become sequences."""

    method: Literal["best_fit", "concat", "none"] = "best_fit"
    lookahead: int | Literal["auto"] = "auto"
    """Samples that may wait for the next step; auto is min(32, global_batch_size)."""

    def __post_init__(self) -> None:
        if self.lookahead != "auto" and self.lookahead < 1:
            raise ConfigError(f"batch.packing.lookahead must be auto or at least 1 sample, got {self.lookahead}")
        if self.lookahead != "auto":
            check_range("batch.packing.lookahead", self.lookahead, 1, MAX_LOOKAHEAD)


class BatchConfig(ConfigStruct, frozen=True, kw_only=True):
    """Geometry of a step."""

    sequence_length: int = 4096
    global_batch_size: int = 64
    """Sequences per optimizer step over all ranks; divides by dp * num_microbatches."""
    packing: PackingConfig = PackingConfig()
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
