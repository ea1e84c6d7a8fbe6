import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msd.cost.estimators import TREES_ROWS, fit
from msd.cost.linear import LinearModel, fit_linear
from msd.cost.models import model_from
from msd.cost.scores import calibration_by_size, score
from msd.errors import ConfigError

NAMES = ("bytes", "pixels")


def made(num_rows=200, *, noise=0.1, seed=0):
    """Features, and seconds that are linear in them but for relative noise."""
    draw = np.random.default_rng(seed)
    features = np.exp(draw.uniform(np.log([1e3, 1e4]), np.log([1e6, 1e7]), (num_rows, 2)))
    seconds = (1e-4 + features @ np.array([2e-9, 5e-9])) * np.exp(draw.normal(0, noise, num_rows))
    return features, seconds


def test_what_is_linear_is_found():
    model = fit_linear(*made(noise=0.0), NAMES)
    assert model.coefficients == pytest.approx((2e-9, 5e-9), rel=1e-6)
    assert model.intercept == pytest.approx(1e-4, rel=1e-6)
    assert str(model) == "100 us + 2 ns x bytes + 5 ns x pixels"


@given(st.integers(0, 10_000))
def test_no_coefficient_and_no_prediction_is_negative(seed):
    features, seconds = made(30, noise=1.0, seed=seed)
    model = fit_linear(features, seconds, NAMES)
    assert min(*model.coefficients, model.intercept) >= 0
    assert (model.predict(features) >= 0).all()


def test_small_rows_count_as_much_as_large_ones():
    features, seconds = made(400)
    model = fit_linear(features, seconds, NAMES)
    small = np.argsort(seconds)[:100]
    assert score(model.predict(features[small]), seconds[small]).mape < 0.15


def test_a_linear_model_is_right_on_means_of_rows():
    features, seconds = made()
    model = fit_linear(features, seconds, NAMES)
    assert model.predict(features.mean(axis=0)[None])[0] == pytest.approx(model.predict(features).mean())


def test_a_row_beyond_what_was_fitted_is_a_guess():
    features, seconds = made()
    model = fit_linear(features, seconds, NAMES)
    assert not model.is_beyond(features).any()
    assert model.is_beyond(np.array([[1e6, 1e9], [1e5, 1e6]])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("features", "seconds", "message"),
    [
        (np.ones((3, 2)), np.ones(3), "at least 8 timed rows, got 3"),
        (np.full((9, 2), np.nan), np.ones(9), "finite"),
        (np.ones((9, 2)), np.full(9, -1.0), "not negative"),
    ],
)
def test_what_no_model_can_be_fitted_to_is_refused(features, seconds, message):
    with pytest.raises(ConfigError, match=message):
        fit_linear(features, seconds, NAMES)


def test_a_source_that_costs_nothing_is_predicted_to():
    model = fit_linear(np.ones((20, 2)), np.zeros(20), NAMES)
    assert model.predict(np.ones((1, 2)))[0] == 0.0


def test_the_one_to_beat_is_chosen_where_it_is_best_and_all_are_told():
    fitted = fit(*made(), NAMES)
    assert fitted.name == "nnls"
    assert set(fitted.scores) == {"nnls", "ridge", "huber", "quantile", "constant", "bytes"}
    assert fitted.score.mape < 0.12
    assert fitted.score.sum_error < 0.03
    assert fitted.scores["constant"].mape > 5 * fitted.score.mape
    assert fitted.scores["bytes"].mape > 2 * fitted.score.mape


def test_every_linear_estimator_is_fitted_to_relative_errors_and_right_on_the_whole():
    scores = fit(*made(noise=0.02), NAMES).scores
    for name in ("nnls", "ridge", "huber", "quantile"):
        assert scores[name].mape < 0.03
        assert scores[name].calibration == pytest.approx(1.0, abs=0.01)


def test_trees_are_chosen_where_cost_is_far_from_linear():
    draw = np.random.default_rng(0)
    features = draw.uniform(0, 1, (TREES_ROWS, 2))
    seconds = np.where(features[:, 0] > 0.5, 1e-3, 1e-5) * (1 + features[:, 1])
    fitted = fit(features, seconds, NAMES)
    assert fitted.name == "trees"
    assert fitted.score.mape < 0.1


@pytest.mark.parametrize("num_rows", [100, TREES_ROWS])
def test_what_is_saved_predicts_the_same_when_it_is_read_back(num_rows):
    draw = np.random.default_rng(1)
    features = draw.uniform(0, 1, (num_rows, 2))
    seconds = np.where(features[:, 0] > 0.5, 1e-3, 1e-5)
    model = fit(features, seconds, NAMES).model
    again = model_from(json.loads(json.dumps(model.as_dict())))
    assert (again.predict(features) == model.predict(features)).all()
    assert (again.is_beyond(2 * features) == model.is_beyond(2 * features)).all()
    assert str(again) == str(model)


@pytest.mark.parametrize("saved", [{}, {"kind": "linear"}, {"kind": "forest"}, {"kind": "linear", "names": 3}])
def test_what_is_no_model_is_refused(saved):
    with pytest.raises(ConfigError, match="no cost model of this release"):
        model_from(saved)


def test_scores_say_how_far_off_rows_sums_and_the_whole_are():
    seconds = np.linspace(1.0, 2.0, 200)
    found = score(1.1 * seconds, seconds)
    assert (found.mape, found.sum_error, found.calibration) == pytest.approx((0.1, 0.1, 1.1), rel=0.01)
    assert score(np.full(200, seconds.mean()), seconds).r2 == pytest.approx(0.0)


def test_calibration_is_told_from_the_cheapest_to_the_dearest():
    seconds = np.linspace(1.0, 2.0, 100)
    groups = calibration_by_size(2 * seconds, seconds)
    assert len(groups) == 5
    assert all(predicted == pytest.approx(2 * measured) for predicted, measured in groups)
    assert groups == sorted(groups)


def test_a_model_of_one_feature_is_told_in_words():
    assert str(LinearModel(("bytes",), (0.0,), 2e-6, (0.0,), (1.0,))) == "2 us"
