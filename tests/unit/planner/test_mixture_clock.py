import pytest

from msd.planner.mixture.clock import Clock, WithinStep
from msd.planner.piece import Piece

PROGRESS = {
    "step": 7,
    "sources": {
        "a": {"ordinal": 30, "tokens": 500, "samples": 28},
        "b": {"ordinal": 12, "tokens": 100, "samples": 40},
    },
}


@pytest.mark.parametrize(
    ("kind", "count"), [("step", 7), ("tokens", 600), ("samples", 68), ("epoch", 42), ("microbatch", 28)]
)
def test_a_clock_reads_a_position(kind, count):
    assert Clock(kind, rows=84, num_microbatches=4).count(PROGRESS) == count


@pytest.mark.parametrize(("epochs", "rows"), [(0, 0), (0.5, 50), (0.29, 29), (1 / 3, 34), (2, 200)])
def test_epochs_are_counted_in_whole_rows_rounded_up(epochs, rows):
    assert Clock("epoch", rows=100).ticks(epochs) == rows


def piece(length):
    return Piece(0, 0, 0, 0, length, length - 1, 0, 0, 0)


def test_the_parts_of_a_step_go_by_the_tokens_drawn_for_it():
    within = WithinStep(Clock("microbatch", num_microbatches=4), num_sequences=4, sequence_length=10)
    begun = [within.add([piece(5)]) for _ in range(9)]
    assert begun == [False, True, False, True, False, True, False, False, False]
    assert within.part == 3


def test_what_is_carried_counts_for_the_first_parts():
    within = WithinStep(Clock("microbatch", num_microbatches=2), num_sequences=2, sequence_length=10)
    within.add([piece(6), piece(6)])
    assert within.part == 1


def test_with_one_sample_a_sequence_the_parts_go_by_samples():
    within = WithinStep(Clock("microbatch", num_microbatches=2), num_sequences=4, sequence_length=None)
    assert [within.add([piece(1)]) for _ in range(4)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("clock", "ticks", "text"),
    [
        (Clock("step"), 1200, "step 1,200"),
        (Clock("epoch", rows=100), 150, "epoch 1.5"),
        (Clock("tokens"), 10**9, "tokens 1,000,000,000"),
    ],
)
def test_a_count_is_shown_in_words(clock, ticks, text):
    assert clock.shown(ticks) == text
