import pytest

from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.mixture.schedule import WEIGHT_UNIT, MixtureSchedule, quantise


def schedule(*stages, weights=None):
    return MixtureSchedule.of(["web", "code"], MixtureConfig(weights=weights, schedule=list(stages)))


def test_sources_without_weights_share_equally():
    assert schedule().shares(0) == (0.5, 0.5)


def test_names_are_in_order_and_a_source_left_out_has_no_share():
    found = schedule(weights={"web": 3.0})
    assert found.names == ("code", "web")
    assert found.shares(7) == (0.0, 1.0)


def test_a_stage_without_ramp_holds_from_its_step_on():
    found = schedule(StageConfig(step=10, weights={"code": 1.0}), weights={"web": 1.0})
    assert found.shares(9) == (0.0, 1.0)
    assert found.shares(10) == (1.0, 0.0)


@pytest.mark.parametrize(("step", "code"), [(9, 0.0), (10, 0.0), (12, 0.5), (14, 1.0), (99, 1.0)])
def test_a_ramp_starts_at_its_step_and_arrives_at_step_plus_ramp(step, code):
    found = schedule(StageConfig(step=10, weights={"code": 2.0}, ramp=4), weights={"web": 5.0})
    assert found.shares(step) == (code, 1.0 - code)


def test_a_stage_that_cuts_a_ramp_short_starts_from_where_the_ramp_was():
    found = schedule(
        StageConfig(step=0, weights={"code": 1.0}, ramp=10),
        StageConfig(step=5, weights={"web": 1.0}, ramp=5),
        weights={"web": 1.0},
    )
    assert found.shares(5) == (0.5, 0.5)
    assert found.shares(7) == pytest.approx((0.3, 0.7))
    assert found.shares(10) == (0.0, 1.0)


def test_thirds_are_quantised_by_largest_remainder_with_ties_to_the_first():
    assert quantise([1.0, 1.0, 1.0]).tolist() == [333_333_334, 333_333_333, 333_333_333]


def test_a_share_below_one_unit_still_gets_a_unit():
    assert quantise([1.0, 1e-15]).tolist() == [WEIGHT_UNIT - 1, 1]


def test_no_shares_give_no_weights():
    assert quantise([0.0, 0.0]).tolist() == [0, 0]
