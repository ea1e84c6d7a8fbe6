import pickle

import numpy as np
import pytest

from msd.core.order import SourceOrder
from msd.core.unbounded import UNENDING_ROWS, WINDOW_ROWS, Admitted, UnboundedOrder, inner_ordinal
from msd.errors import SourceError
from msd.testing.blocks import made_up_blocks


class Kept:
    """Admissions that are known from the start."""

    def __init__(self, *rows_of_blocks) -> None:
        self.admitted = []
        first = 0
        for number, rows_B in enumerate(rows_of_blocks):
            one = Admitted(number, first, made_up_blocks(rows_B))
            self.admitted.append(one)
            first = one.end

    @property
    def num_rows(self) -> int:
        return self.admitted[-1].end

    def count(self):
        return self.num_rows, len(self.admitted)

    def find(self, ordinal):
        return next((one for one in self.admitted if one.first_ordinal <= ordinal < one.end), None)


def order(kept: Kept, **settings) -> UnboundedOrder:
    return UnboundedOrder(**{"seed": 3, "source": "web", "admissions": kept, "shuffle": True, "window": 2, **settings})


def places(found: UnboundedOrder, rows: int) -> list[tuple[int, str, int]]:
    admitted = [found.admitted(ordinal) for ordinal in range(rows)]
    return [(a.number, p.shard, p.row) for a, p in zip(admitted, map(found.place_of, range(rows)), strict=True)]


def test_every_row_of_an_admission_comes_once_and_before_those_of_the_next():
    kept = Kept([5, 7, 4], [1], [9, 9])
    found = places(order(kept), kept.num_rows)
    assert len(set(found)) == kept.num_rows
    assert [number for number, _, _ in found] == [0] * 16 + [1] + [2] * 18


def test_what_comes_later_changes_nothing_of_what_came():
    few, many = Kept([5, 7, 4]), Kept([5, 7, 4], [9, 9])
    assert places(order(few), 16) == places(order(many), 34)[:16]


def test_admissions_of_one_shape_are_permuted_apart():
    found = places(order(Kept([50], [50])), 100)
    first, second = [row for _, _, row in found[:50]], [row for _, _, row in found[50:]]
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != sorted(first)


def test_an_admission_is_an_epoch_of_its_number():
    kept = Kept([5, 7], [8, 3])
    found, second = order(kept), kept.admitted[1]
    alone = SourceOrder(seed=3, source="web", blocks=second.blocks, shuffle=True, window_blocks=2)
    for ordinal in range(second.first_ordinal, second.end):
        assert found.place_of(ordinal).row == alone.place_of(inner_ordinal(second, ordinal)).row
        assert alone.window_at(inner_ordinal(second, ordinal)).epoch == 1


def test_file_order_is_kept_where_nothing_is_shuffled():
    found = places(order(Kept([5, 7]), shuffle=False), 12)
    assert found == sorted(found, key=lambda place: place[2])


def test_windows_are_spans_that_need_no_ledger():
    found = order(Kept([1]))
    ordinal_N = np.array([0, WINDOW_ROWS - 1, WINDOW_ROWS, 10**12], dtype=np.int64)
    windows = [found.window_at(int(ordinal)) for ordinal in ordinal_N]
    assert found.window_numbers(ordinal_N).tolist() == [window.number for window in windows]
    assert found.window_offsets(ordinal_N).tolist() == [
        int(ordinal) - window.first_ordinal for ordinal, window in zip(ordinal_N, windows, strict=True)
    ]
    assert found.total_ordinals(None) is None
    assert (found.rows_per_epoch, found.is_unbounded) == (UNENDING_ROWS, True)
    with pytest.raises(ValueError, match="count from 0"):
        found.window_at(-1)


def test_a_row_that_was_not_admitted_has_no_place():
    with pytest.raises(SourceError, match=r"sources\.web: row 5 was asked for, and its ledger holds 5 rows"):
        order(Kept([5])).place_of(5)


def test_an_order_travels():
    kept = Kept([5, 7])
    found = order(kept)
    expected = places(found, 12)
    assert places(pickle.loads(pickle.dumps(found)), 12) == expected
