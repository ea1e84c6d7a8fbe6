import numpy as np
import pytest

from msd.core.order import SourceOrder
from msd.cost.ahead import seconds_ahead
from msd.cost.ledger import KEPT, Batch, Ledger
from msd.cost.linear import LinearModel
from msd.testing.blocks import made_up_blocks

MODEL = LinearModel(("bytes",), (1e-8,), 1e-4, (0.0,), (1e6,))


def batches(count=50, *, times=1.0, seed=0) -> list[Batch]:
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rows, mean = int(draw.integers(1, 64)), draw.uniform(1e3, 1e5)
        seconds = times * (1e-8 * rows * mean + 1e-4 * rows) * np.exp(draw.normal(0, 0.05))
        found.append(Batch(rows, rows * mean, float(seconds), float(seconds) / 2))
    return found


def ledger(*parts: list[Batch]) -> Ledger:
    made = Ledger()
    for batch in [one for part in parts for one in part]:
        made.add(batch)
    return made


def test_nothing_is_said_while_there_are_too_few_batches():
    few = ledger(batches(3))
    assert few.drift(MODEL) is None
    assert few.refit() is None
    assert Ledger().cpu_share() == 1.0


def test_rows_that_take_what_the_profile_says_have_not_drifted():
    drift = ledger(batches()).drift(MODEL)
    assert drift.factor == pytest.approx(1.0, abs=0.05)
    assert not drift.is_drifted


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_rows_that_take_something_else_now_are_said_to(times):
    drift = ledger(batches(200), batches(64, times=times, seed=1)).drift(MODEL)
    assert drift.factor == pytest.approx(times, rel=0.1)
    assert drift.is_drifted
    assert "run `msd profile` again" in str(drift)


def test_a_refit_follows_what_rows_take():
    model = ledger(batches(300, times=2.0)).refit()
    assert model.coefficients[0] == pytest.approx(2e-8, rel=0.1)
    assert model.intercept == pytest.approx(2e-4, rel=0.1)
    assert ledger(batches(times=2.0, seed=3)).drift(model).factor == pytest.approx(1.0, abs=0.1)


def test_a_ledger_is_bounded_and_empty_batches_are_none():
    many = ledger(batches(KEPT + 100), [Batch(0, 0.0, 0.0, 0.0)])
    assert len(many) == KEPT
    assert many.cpu_share() == pytest.approx(0.5)


def order(nbytes_B) -> SourceOrder:
    blocks = made_up_blocks([10] * len(nbytes_B), block_bytes=nbytes_B)
    return SourceOrder(seed=1, source="web", blocks=blocks, shuffle=False, window_blocks=1)


def test_seconds_of_rows_to_come_grow_with_their_bytes():
    growing = order([1_000, 10_000, 100_000])
    small = seconds_ahead(growing, MODEL, 0, 10)
    assert small == pytest.approx(1e-8 * 1_000 + 1e-4 * 10)
    assert seconds_ahead(growing, MODEL, 20, 30) == pytest.approx(1e-8 * 100_000 + 1e-4 * 10)
    assert seconds_ahead(growing, MODEL, 5, 15) == pytest.approx(1e-8 * 5_500 + 1e-4 * 10)
    assert seconds_ahead(growing, MODEL, 0, 60) == pytest.approx(2 * seconds_ahead(growing, MODEL, 0, 30))


def test_no_rows_take_no_time():
    assert seconds_ahead(order([1_000]), MODEL, 5, 5) == 0.0
    assert seconds_ahead(order([]), MODEL, 0, 9) == 0.0
