"""Seconds worked out by hand, and the assignments that plans are compared with."""

import numpy as np
import pytest

from msd.errors import ConfigError
from msd.simulator.assign import Assignment, Encoding, Grid, by_tokens, dealt, length_groups
from msd.simulator.step_time import Speeds, even_step_s, step_time
from msd.simulator.trainer import Trainer
from msd.simulator.work import StepWork

ONE = Speeds(1.0, 1.0)


def work_of_lengths(tokens, images=(), padding_cost=1.0, rows=None):
    """Documents that cost their length; `images` are pairs of (document, cost)."""
    tokens_D = np.array(tokens, dtype=np.int64)
    return StepWork(
        tokens_D=tokens_D,
        backbone_D=tokens_D.astype(np.float64),
        row_D=np.arange(len(tokens_D)) if rows is None else np.array(rows),
        document_I=np.array([document for document, _ in images], dtype=np.int64),
        encoder_I=np.array([cost for _, cost in images], dtype=np.float64),
        embeddings_I=np.ones(len(images)),
        padding_cost=padding_cost,
    )


def grid_of(buckets, slots, *, row_tokens=10, stages=1, ranks=1):
    consumers = [tuple(range(b * ranks * stages, (b + 1) * ranks * stages)) for b in range(buckets)]
    return Grid(buckets, slots, row_tokens, stages, consumers)


def placed(rows, *, is_padded=False, encoded=None):
    """An assignment from (bucket, slot) of each document, and (rank, round) of each image."""
    return Assignment(
        name="planned",
        bucket_D=np.array([bucket for bucket, _ in rows]),
        slot_D=np.array([slot for _, slot in rows]),
        is_padded=is_padded,
        encoding=None
        if encoded is None
        else Encoding(rank_I=np.array([r for r, _ in encoded]), round_I=np.array([n for _, n in encoded])),
    )


def seconds(work, assignment, grid, **trainer):
    return step_time(work, assignment, grid, Trainer(**trainer), ONE)[0]


def test_without_stages_a_step_takes_as_long_as_the_costliest_rank():
    work, grid = work_of_lengths([9, 3, 6, 2]), grid_of(2, 2)
    time = seconds(work, placed([(0, 0), (0, 1), (1, 0), (1, 1)]), grid)
    assert time.step_s == pytest.approx(12.0)
    assert time.backbone_imbalance == pytest.approx(12 / 10 - 1)
    assert time.lockstep == pytest.approx((9 + 3) / 10 - 1)
    assert time.row_ratio == pytest.approx(9 / 5)
    assert time.row_spread == pytest.approx(9 / 2)
    assert time.attention_ratio == pytest.approx(81 / ((81 + 9 + 36 + 4) / 4))
    assert time.idle == pytest.approx(1 - 20 / 24)
    assert (time.longest_row, time.bubble) == (9, 0.0)


def test_ranks_that_meet_in_every_microbatch_wait_for_the_slowest_of_each():
    work, grid = work_of_lengths([9, 1, 2, 8]), grid_of(2, 2)
    rows = placed([(0, 0), (0, 1), (1, 0), (1, 1)])
    assert seconds(work, rows, grid).step_s == pytest.approx(10.0)
    assert seconds(work, rows, grid, sync="microbatch").step_s == pytest.approx(17.0)


def test_equal_rows_in_a_pipeline_take_slots_plus_stages_less_one():
    work, grid = work_of_lengths([6, 6, 6]), grid_of(1, 3, stages=2)
    time = seconds(work, placed([(0, 0), (0, 1), (0, 2)]), grid)
    assert time.step_s == pytest.approx((3 + 1) * 6 / 2)
    assert time.bubble == pytest.approx(1 / 4)
    assert even_step_s(work, grid, Trainer(), ONE) == pytest.approx(time.step_s)


def test_stage_shares_overheads_and_backward_are_counted():
    work, grid = work_of_lengths([12]), grid_of(1, 1, stages=2)
    time = seconds(
        work, placed([(0, 0)]), grid, stage_shares=[0.75, 0.25], backward=1.0, pass_overhead_s=1.0, step_overhead_s=5.0
    )
    assert time.step_s == pytest.approx(12 + 4 * 1 + 5)
    with pytest.raises(ConfigError, match="stage_shares has 2 stages, the mesh has pp=1"):
        Trainer(stage_shares=[0.5, 0.5]).shares(1)


def test_packed_rows_are_computed_with_their_padding_and_dealt_rows_without():
    work, grid = work_of_lengths([4, 10], padding_cost=1.0), grid_of(2, 1, row_tokens=10)
    rows = [(0, 0), (1, 0)]
    assert seconds(work, placed(rows, is_padded=True), grid).idle == pytest.approx(1 - 14 / 20)
    short = work_of_lengths([4, 4])
    assert seconds(short, placed(rows, is_padded=True), grid).step_s == pytest.approx(10.0)
    assert seconds(short, placed(rows), grid).step_s == pytest.approx(4.0)
    assert seconds(short, placed(rows, is_padded=True), grid, pads=False).step_s == pytest.approx(4.0)


def test_the_first_stage_encodes_the_images_of_its_rows():
    work, grid = work_of_lengths([6, 6], images=[(0, 4.0)]), grid_of(2, 1, stages=2)
    time = seconds(work, placed([(0, 0), (1, 0)]), grid)
    assert time.step_s == pytest.approx(6 + 4)
    assert (time.encoder_s, time.encoder_imbalance) == (0.0, 1.0)


def test_every_rank_encodes_images_of_its_row_in_turn_or_of_anyone():
    images = [(0, 4.0), (0, 2.0), (0, 2.0), (0, 2.0)]
    work, grid = work_of_lengths([6, 6], images=images), grid_of(2, 1, row_tokens=6, ranks=2)
    rows = [(0, 0), (1, 0)]
    own = seconds(work, placed(rows), grid, encoder="every_rank")
    assert own.step_s == pytest.approx(6 / 2 + (4 + 2))
    spread = placed(rows, encoded=[(0, 0), (1, 0), (2, 0), (3, 0)])
    time = seconds(work, spread, grid, encoder="every_rank")
    assert time.step_s == pytest.approx(6 / 2 + 4)
    assert time.encoder_imbalance == pytest.approx(4 / 2.5 - 1)


def test_ranks_that_meet_in_rounds_wait_for_the_slowest_of_each():
    work, grid = work_of_lengths([6, 6], images=[(0, 4.0), (1, 3.0)]), grid_of(1, 2, ranks=2)
    rows = [(0, 0), (0, 1)]
    once = seconds(work, placed(rows, encoded=[(0, 0), (1, 0)]), grid, encoder="every_rank")
    twice = seconds(work, placed(rows, encoded=[(0, 0), (1, 1)]), grid, encoder="every_rank")
    assert once.step_s == pytest.approx(12 / 2 + 4)
    assert twice.step_s == pytest.approx(12 / 2 + 4 + 3)


def test_embeddings_travel_there_and_their_gradients_back():
    work, grid = work_of_lengths([6, 6], images=[(0, 4.0), (0, 4.0)]), grid_of(2, 1)
    rows = placed([(0, 0), (1, 0)], encoded=[(0, 0), (1, 0)])
    time = seconds(work, rows, grid, encoder="every_rank", embedding_bytes=3.0, link_bytes_per_s=1.0)
    assert time.step_s == pytest.approx(6 + 4 + 2 * 2 * 3)


def test_dealing_gives_every_microbatch_the_same_number_in_the_order_drawn():
    work, grid = work_of_lengths(range(1, 9)), grid_of(2, 2)
    made = dealt(work, grid)
    assert made.bucket_D.tolist() == [0, 1] * 4
    assert made.slot_D.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_dealing_goes_by_the_order_drawn_and_keeps_the_samples_of_a_row_together():
    work = work_of_lengths([1, 1, 1, 9, 9, 9], rows=[0, 2, 3, 1, 1, 1])
    made = dealt(work, grid_of(2, 2))
    assert made.bucket_D.tolist() == [0, 0, 1, 1, 1, 1]
    assert made.slot_D.tolist() == [0, 1, 1, 0, 0, 1]


def test_groups_of_like_length_fill_slots_from_the_longest():
    work, grid = work_of_lengths([1, 8, 2, 7, 3, 6, 4, 5]), grid_of(2, 2)
    made = length_groups(work, grid)
    assert sorted(work.tokens_D[made.slot_D == 0]) == [5, 6, 7, 8]
    assert np.bincount(made.bucket_D, work.tokens_D).tolist() == [18, 18]


def test_tokens_are_even_over_microbatches_and_each_has_some():
    work, grid = work_of_lengths([8, 7, 6, 5, 4, 3, 2, 1]), grid_of(2, 2)
    made = by_tokens(work, grid)
    assert np.bincount(made.slot_D * 2 + made.bucket_D, work.tokens_D).tolist() == [9, 9, 9, 9]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"backward": -1.0}, "trainer.backward must lie in"),
        ({"flops_per_s": 0.0}, "trainer.flops_per_s must lie in"),
        ({"stage_shares": [0.2, 0.2]}, "sum to 1"),
        ({"stage_shares": []}, "sum to 1"),
    ],
)
def test_a_trainer_that_cannot_be_is_refused(setting, said):
    with pytest.raises(ConfigError, match=said):
        Trainer(**setting)
