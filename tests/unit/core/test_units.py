"""Sizes as configurations write them, and what a batch knows of itself."""

import numpy as np
import pytest

from msd.core.batch import Microbatch, RankBatch
from msd.core.config import parse_bytes
from msd.errors import ConfigError, EngineError, InputError, MsdError, StateError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (65536, 65536),
        ("1MiB", 1 << 20),
        ("64KB", 64_000),
        ("2 GiB", 2 << 30),
        ("512", 512),
        ("1.5kib", 1536),
        ("3M", 3_000_000),
    ],
)
def test_sizes_are_read_with_their_unit(text, size):
    assert parse_bytes(text, name="block_bytes") == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1 PiB", True, 0, -5, "0MiB", 1.5e300])
def test_what_is_not_a_size_is_refused_with_its_setting(text):
    with pytest.raises(ConfigError, match=r"shuffle\.block_bytes must be a"):
        parse_bytes(text, name="shuffle.block_bytes")


def row(length, labelled):
    column = np.zeros(length, dtype=np.int32)
    mask = (np.arange(length) < labelled).astype(np.float32)
    edges = np.array([0, length], dtype=np.int32)
    return Microbatch(
        input_ids=column, labels=column, position_ids=column, segment_ids=column, loss_mask=mask, cu_seqlens=edges,
        cu_seqlens_padded=edges, max_seqlen=length, num_tokens=length,
    )  # fmt: skip


def test_a_microbatch_counts_its_labels_exactly_however_long():
    assert row(2**24 + 16, 2**24 + 3).num_valid_tokens == 2**24 + 3


def test_a_batch_counts_its_bytes():
    rows = [row(8, 4), row(8, 8)]
    batch = RankBatch(
        step=0, rank=0, sample_ids=[], microbatches=rows, num_valid_tokens=12, global_num_valid_tokens=12,
        sequence_length=8,
    )  # fmt: skip
    assert batch.nbytes == 2 * (5 * 8 * 4 + 2 * 2 * 4)


def test_errors_say_whether_the_user_or_the_run_is_at_fault():
    kinds = (InputError, ConfigError, MsdError, StateError, EngineError)
    assert [kind.exit_status for kind in kinds] == [2, 2, 1, 1, 1]
