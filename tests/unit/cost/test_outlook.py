import pytest

from msd.core.order import SourceOrder
from msd.cost.linear import LinearModel
from msd.cost.outlook import Outlook, Spending
from msd.testing.blocks import made_up_blocks


def order_of(rows_B, bytes_of_row):
    """Windows of two blocks of ten rows, whose rows have so many bytes each."""
    blocks = made_up_blocks(rows_B, block_bytes=[rows * each for rows, each in zip(rows_B, bytes_of_row, strict=True)])
    return SourceOrder(seed=1, source="photos", blocks=blocks, shuffle=False, window_blocks=2)


GROWS = order_of((10,) * 20, [100] * 10 + [400] * 10)
"""A source whose rows are four times as large in its second half."""
PER_BYTE = LinearModel(("bytes",), (1e-5,), 0.0, (0.0,), (1000.0,))
PER_ROW = LinearModel(("bytes",), (0.0,), 1e-3, (0.0,), (1000.0,))


def watched(outlook, *, rows_per_s=10.0, seconds=12, row_s=1e-3):
    rows = 0.0
    for second in range(seconds):
        outlook.note(float(second), {"photos": Spending(int(rows), rows, rows * row_s, rows * row_s / 2)})
        rows += rows_per_s
    return outlook


def test_rows_that_are_larger_are_seen_as_far_ahead_as_is_looked():
    outlook = watched(Outlook({"photos": GROWS}, {}), rows_per_s=5.0)
    assert outlook.grows("photos", 4.0) == 1.0
    assert outlook.grows("photos", 20.0) == pytest.approx(4.0)


def test_bytes_count_as_far_as_the_profile_says_that_they_do():
    for model, times in ((PER_BYTE, 4.0), (PER_ROW, 1.0)):
        outlook = watched(Outlook({"photos": GROWS}, {"photos": model}), rows_per_s=5.0)
        assert outlook.grows("photos", 20.0) == pytest.approx(times)


def test_what_rows_turned_out_to_take_counts_more_than_the_profile():
    """Small and large rows took the same: larger ones that come will, too."""
    order = order_of((10,) * 20, [100, 100, 400, 400] * 5)
    outlook = watched(Outlook({"photos": order}, {"photos": PER_BYTE}), rows_per_s=10.0, seconds=14)
    assert outlook.grows("photos", 10.0) < 1.5
    assert Outlook({"photos": order}, {"photos": PER_BYTE}).grows("photos", 10.0) == 1.0, "nothing was seen"


def test_a_profile_that_holds_no_more_says_so():
    outlook = watched(Outlook({"photos": GROWS}, {"photos": PER_BYTE}), row_s=5e-3)
    (drift,) = outlook.drifts().values()
    assert drift.is_drifted
    assert "run `msd profile` again" in str(drift)
    fits = watched(Outlook({"photos": GROWS}, {"photos": PER_BYTE}), rows_per_s=5.0, row_s=1e-3)
    assert not fits.drifts()["photos"].is_drifted


def test_totals_that_began_anew_and_sources_without_rows_say_nothing():
    empty = order_of((), [])
    outlook = Outlook({"photos": GROWS, "none": empty}, {})
    outlook.note(0.0, {"photos": Spending(50, 50, 1.0, 1.0), "none": Spending(0, 0, 0, 0)})
    outlook.note(1.0, {"photos": Spending(10, 10, 0.1, 0.1), "none": Spending(0, 0, 0, 0)})
    assert outlook.grows("none", 10.0) == 1.0
    assert outlook.grows("photos", 1.0) == 1.0
    assert outlook.drifts() == {}
