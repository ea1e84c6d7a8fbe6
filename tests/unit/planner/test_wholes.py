"""Rows that were packed before: one piece to packing, one unit to a layout, several documents in a plan."""

import json

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.core.written import Written
from msd.errors import StateError
from msd.planner.piece import Piece
from msd.planner.planner import Planner
from msd.planner.primitives.layout import Grid
from msd.planner.primitives.pack import Limits
from msd.planner.wholes import Units
from msd.testing.tables import Part, Row, failed_row, feed_of, row, settings_of, steps_of

LENGTH = 32


def document(part, length, *, images=0, ordinal=3):
    return Piece(0, ordinal, part, 0, length, length - 1, images, images, 4 * images)


def written(**changes):
    terms = {
        "sequence_length": LENGTH, "document_multiple": 1, "num_buckets": 2, "num_microbatches": 1,
        "sequences_per_step": 4, "tokenizers": (), "images": None, "fingerprint": "",
    }  # fmt: skip
    return Written(**{**terms, **changes})


def settings(rows, others=None, **changes):
    made = {"p": rows, **(others or {})}
    terms = {"p": {"written": changes.pop("written", written()), "max_rate": 1.0}}
    chosen = settings_of(
        made, sequence_length=LENGTH, global_batch_size=4, mesh=Mesh.of(dp=2), terms=terms,
        **{"max_epochs": {"p": 1}, "batch": {"last": "pad"}, **changes},
    )  # fmt: skip
    return made, chosen


def plans_of(made, chosen, planner=None):
    return list(steps_of(planner or Planner(chosen), feed_of(made, chosen)))


def test_a_row_is_as_long_as_a_sequence_and_is_never_cut():
    whole = Piece.whole([document(0, 5, images=2), document(1, 7)], LENGTH)
    assert (whole.length, whole.num_tokens, whole.num_valid, whole.num_images, whole.num_patches) == (32, 12, 10, 2, 8)
    assert whole.num_uncut == LENGTH
    with pytest.raises(ValueError, match="cannot cut 32 tokens, the first 32 of them never"):
        whole.cut(8)
    assert Limits(attention=100).loads(whole) == (25 + 49,)


def test_units_sum_over_their_documents_and_tell_them_apart_again():
    sequences = [[Piece.whole([document(0, 5), document(1, 7)], LENGTH)], [document(0, 9, ordinal=8)], []]
    units = Units(sequences, may_be_whole=True)
    assert units.summed(np.array([5, 7, 9])).tolist() == [12, 9]
    assert units.any(np.array([False, True, False])).tolist() == [True, False]
    assert units.extents(np.array([8, 8, 12]), LENGTH).tolist() == [32, 12]
    order, (bucket,), within = units.documents(np.array([1, 0]), [np.array([0, 1])], np.array([8, 8, 12]))
    assert order.tolist() == [2, 0, 1]
    assert bucket.tolist() == [0, 1, 1]
    assert within.tolist() == [0, 0, 8]


def test_only_a_whole_written_step_on_its_own_grid_has_a_written_layout():
    def laid_out(ordinals, grid=(2, 1, 2), **terms):
        sequences = [[Piece.whole([document(0, 5, ordinal=ordinal)], LENGTH)] for ordinal in ordinals]
        sequences += [[] for _ in range(4 - len(ordinals))]
        units = Units(sequences, may_be_whole=True)
        layout = units.as_written(Grid(*grid, LENGTH), {0: (written(**terms), 8)})
        return None if layout is None else layout.rows

    # By [slot][bucket]: sequences of the first bucket come first.
    assert laid_out([4, 5, 6, 7]) == [[[0, 1], [2, 3]]]
    assert laid_out([12, 13, 14, 15]) == [[[0, 1], [2, 3]]], "the second epoch"
    assert laid_out([4, 6, 7]) == [[[0, 3], [1, 2]]], "a row that held nothing"
    assert laid_out([3, 4, 5, 6]) is None, "rows of two steps"
    assert laid_out([6, 7, 8, 9]) is None, "rows of two epochs"
    assert laid_out([4, 5, 6, 7], grid=(1, 1, 4)) is None
    assert laid_out([4, 5, 6, 7], sequences_per_step=None) is None
    assert laid_out([4, 5, 6, 7], num_microbatches=2) is None


def test_beside_a_document_a_row_has_no_written_layout():
    units = Units([[Piece.whole([document(0, 5)], LENGTH)], [document(0, 9)], [], []], may_be_whole=True)
    assert units.as_written(Grid(2, 1, 2, LENGTH), {0: (written(), 8)}) is None


def test_a_row_that_failed_is_missed_and_the_rows_behind_it_move_up():
    rows = [row(5, 6) if number != 2 else failed_row() for number in range(12)]
    plans = plans_of(*settings(rows))
    assert [sorted(set(plan.ordinal_D.tolist())) for plan in plans] == [[0, 1, 3, 4], [5, 6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_a_row_counts_with_its_real_tokens_and_documents(unit):
    others = {"o": [row(8)]}
    made, chosen = settings([row(4, 4)] * 400, others, weights={"p": 1, "o": 1}, unit=unit)
    plans = plans_of(made, chosen)[:20]
    tokens = {name: sum(plan.report.tokens_by_source.get(name, 0) for plan in plans) for name in made}
    samples = {name: sum(plan.report.samples_by_source.get(name, 0) for plan in plans) for name in made}
    of = tokens if unit == "tokens" else samples
    assert 0.75 < of["p"] / of["o"] < 1.25
    assert samples["p"] * 4 == tokens["p"]


def waiting():
    """Settings, and a position at which a row waits: every sequence had begun when it was drawn."""
    others = {"o": [Row((Part(20),)), Row((Part(3),))]}
    rows = [Row((Part(5, 2), Part(6))) for _ in range(40)]
    made, chosen = settings(rows, others, weights={"p": 1, "o": 3}, packing={"method": "best_fit", "lookahead": 4})
    for plan in steps_of(Planner(chosen), feed_of(made, chosen)):
        entries = [entry for entry in plan.progress["carry"] if entry.get("inner")]
        if entries:
            return made, chosen, plan.progress, entries
    raise AssertionError("no row ever waited")


def test_a_row_that_waits_is_saved_with_its_documents_and_comes_whole():
    made, chosen, progress, entries = waiting()
    assert entries[0]["inner"] == [[5, 2, 2, 1, 8], [6, 5, 0, 0, 0]]
    planner = Planner(chosen)
    planner.load_state_dict(json.loads(json.dumps(progress)))
    assert planner.state_dict() == progress
    (plan, *_) = plans_of(made, chosen, planner)
    held = (plan.source_D == plan.source_names.index("p")) & (plan.ordinal_D == entries[0]["ordinal"])
    assert plan.length_D[held].tolist() == [5, 6]
    assert plan.num_image_tokens_D[held].tolist() == [2, 0]


@pytest.mark.parametrize("inner", [[[5, 2, 2, 1, 8]], [[40, 2, 2, 1, 8], [6, 5, 0, 0, 0]], [[5, 2, 2, 1]], [5], [[]]])
def test_a_row_that_waits_and_cannot_be_is_refused(inner):
    _, chosen, progress, _ = waiting()
    damaged = json.loads(json.dumps(progress))
    next(entry for entry in damaged["carry"] if entry.get("inner"))["inner"] = inner
    with pytest.raises(StateError, match="the state is damaged"):
        Planner(chosen).load_state_dict(damaged)
