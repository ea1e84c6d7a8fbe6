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


def test_the_next_turn_is_where_a_stage_starts_or_a_ramp_ends():
    found = schedule(
        StageConfig(step=10, weights={"code": 1.0}, ramp=5), StageConfig(step=30, weights={"web": 1.0}), weights=None
    )
    assert [found.next_turn(count) for count in (0, 9, 10, 14, 15, 29, 30)] == [10, 10, 15, 15, 30, 30, None]


def test_a_stage_may_go_by_sizes():
    mixture = MixtureConfig(weights={"web": 1.0}, schedule=[StageConfig(step=5, mode="proportional")])
    found = MixtureSchedule.of(["web", "code"], mixture, rows={"web": 30, "code": 10})
    assert (found.shares(4), found.shares(5)) == ((0.0, 1.0), (0.25, 0.75))


def test_a_ramp_in_epochs_ends_where_start_and_ramp_together_say():
    stage = StageConfig(at=0.105, ramp=0.105, weights={"code": 1.0})
    mixture = MixtureConfig(weights={"web": 1.0}, clock="epoch", schedule=[stage])
    found = MixtureSchedule.of(["web", "code"], mixture, rows={"web": 60, "code": 40})
    assert [found.shares(count)[0] for count in (10, 11, 16, 21)] == [0.0, 0.0, 0.5, 1.0]


def test_a_schedule_is_printed_stage_by_stage():
    found = schedule(
        StageConfig(step=1000, weights={"code": 1.0, "web": 1.0}, ramp=500), StageConfig(step=9000, weights={"web": 1}),
        weights={"web": 4.0, "code": 1.0},
    )  # fmt: skip
    assert str(found) == (
        "web 80.0%, code 20.0%; from step 1,000 to step 1,500: code 50.0%, web 50.0%; at step 9,000: web 100.0%"
    )


def test_a_schedule_of_many_sources_is_printed_in_one_line():
    found = MixtureSchedule.of([f"s{number:03}" for number in range(306)], MixtureConfig())
    assert str(found).startswith("s000 0.3%, s001 0.3%")
    assert str(found).endswith("298 others 97.4%")


def test_thirds_are_quantised_by_largest_remainder_with_ties_to_the_first():
    assert quantise([1.0, 1.0, 1.0]).tolist() == [333_333_334, 333_333_333, 333_333_333]


def test_a_share_below_one_unit_still_gets_a_unit():
    assert quantise([1.0, 1e-15]).tolist() == [WEIGHT_UNIT - 1, 1]


def test_no_shares_give_no_weights():
    assert quantise([0.0, 0.0]).tolist() == [0, 0]
