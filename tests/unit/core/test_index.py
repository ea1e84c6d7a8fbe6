"""The index of a source and the split of its rows."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from msd.core.index import Split
from msd.testing.blocks import made_up_blocks


def test_splits_that_meet_share_each_row_out_once():
    edges = [0.0, 0.05, 0.5, 0.95, 1.0]
    kept = [Split(low=a, high=b).kept("web/0", 100, 5000) for a, b in pairwise(edges)]
    assert sorted(np.concatenate(kept).tolist()) == list(range(5000))
    for rows, (a, b) in zip(kept, pairwise(edges), strict=True):
        assert abs(len(rows) / 5000 - (b - a)) < 0.03


def test_a_row_keeps_its_side_of_the_split_however_blocks_are_cut():
    split = Split(low=0.2, high=0.6)
    whole = split.kept("web/0", 0, 1000)
    pieces = [split.kept("web/0", start, 125) + start for start in range(0, 1000, 125)]
    assert np.concatenate(pieces).tolist() == whole.tolist()


def test_shards_of_another_name_are_split_otherwise():
    split = Split(low=0.0, high=0.5)
    assert split.kept("web/0", 0, 200).tolist() != split.kept("web/1", 0, 200).tolist()


def test_a_split_counts_its_rows_block_by_block():
    table = made_up_blocks([40, 0, 60], split=Split(low=0.5, high=1.0))
    assert table.kept_B.tolist() == [len(table.kept_rows(block)) for block in range(3)]
    assert table.num_rows == table.kept_B.sum() < 100


def moved(table):
    files = tuple(dataclasses.replace(shard, path=f"elsewhere/{shard.name}") for shard in table.shards)
    return dataclasses.replace(table, shards=files)


def renamed(table):
    return dataclasses.replace(table, shards=(dataclasses.replace(table.shards[0], name="other"), *table.shards[1:]))


def test_the_digest_does_not_know_where_the_data_lies():
    table = made_up_blocks([4, 5], shards=[0, 1])
    assert moved(table).digest == table.digest


@pytest.mark.parametrize(
    "other",
    [
        renamed(made_up_blocks([4, 5], shards=[0, 1])),
        made_up_blocks([4, 6], shards=[0, 1]),
        made_up_blocks([4, 5], shards=[0, 0]),
        made_up_blocks([4, 5], shards=[0, 1], units=[0, 0]),
        made_up_blocks([4, 5], shards=[0, 1], block_bytes=10),
        made_up_blocks([4, 5], shards=[0, 1], split=Split(low=0.0, high=0.5)),
    ],
    ids=["name", "rows", "shards", "units", "bytes", "split"],
)
def test_the_digest_knows_names_rows_sizes_and_cuts(other):
    assert other.digest != made_up_blocks([4, 5], shards=[0, 1]).digest


def test_a_file_name_that_is_not_utf8_has_a_digest():
    table = made_up_blocks([1])
    odd = dataclasses.replace(table, shards=(dataclasses.replace(table.shards[0], name="caf\udce9"),))
    assert odd.digest != table.digest
