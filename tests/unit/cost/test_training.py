import numpy as np
import pytest

from msd.cost.training import fit_training
from msd.errors import ConfigError


def table(num=40, *, noise=0.0, module=None):
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(num):
        lengths = draw.integers(10, 4000, draw.integers(1, 12))
        seconds = 0.01 + sum(1e-5 + 2e-6 * s + 3e-10 * s * s for s in lengths)
        row = {"lengths": lengths.tolist(), "seconds": float(seconds * np.exp(draw.normal(0, noise)))}
        rows.append(row | ({"module": module} if module else {}))
    return rows


def test_terms_of_a_step_are_told_apart():
    (found,) = fit_training(table())
    assert (found.module, found.overhead_s) == ("backbone", pytest.approx(0.01, rel=0.01))
    assert (found.cost.linear, found.cost.quadratic) == pytest.approx((2e-6, 3e-10), rel=0.01)
    assert found.score.mape < 0.001


def test_modules_are_fitted_each_for_itself_and_noise_is_told():
    backbone, encoder = fit_training([*table(noise=0.05), *table(module="encoder")])
    assert (backbone.module, encoder.module) == ("backbone", "encoder")
    assert encoder.score.mape < 0.001 < backbone.score.mape < 0.1


def test_lengths_may_be_text():
    rows = [{**row, "lengths": " ".join(map(str, row["lengths"]))} for row in table()]
    assert fit_training(rows)[0].cost == fit_training(table())[0].cost


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no timed microbatch"),
        ([{"seconds": 1.0}], "row 0 of timed microbatches: needs `lengths`"),
        ([{"lengths": "a b", "seconds": 1.0}], "row 0"),
        (table(5), "5 timed microbatches do not tell"),
        ([{"lengths": [512], "seconds": 1.0}] * 20, "do not tell linear and quadratic cost apart"),
        ([{"lengths": [10 * n], "seconds": 1.0} for n in range(1, 30)], "do not grow with the lengths"),
    ],
    ids=["nothing", "no lengths", "words", "few", "alike", "constant"],
)
def test_a_table_that_says_nothing_is_refused(rows, message):
    with pytest.raises(ConfigError, match=message):
        fit_training(rows)
