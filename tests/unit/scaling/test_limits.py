import pytest

from msd.runtime.dask.pace import Pace
from msd.scaling.limits import limit_of


def test_a_source_that_is_waited_for_is_named_with_what_it_gives_and_what_is_needed():
    limit = limit_of({"web": 500, "photos": 410}, {"web": 0.2, "photos": 3.5}, waited_s=3.2, elapsed_s=10.0)
    assert str(limit) == "photos limits the step: 41 samples/s of 60 needed"
    assert limit.as_dict()["text"] == str(limit)


@pytest.mark.parametrize(
    ("starved_s", "waited_s"),
    [
        pytest.param({"photos": 5.0}, 0.1, id="planning waits while steps are ahead of every rank"),
        pytest.param({"photos": 0.5}, 5.0, id="ranks wait for something else"),
        pytest.param({}, 5.0, id="no source was waited for"),
    ],
)
def test_nothing_is_said_to_limit_where_no_source_does(starved_s, waited_s):
    assert limit_of({"photos": 10}, starved_s, waited_s=waited_s, elapsed_s=10.0) is None


def test_what_hardly_comes_at_all_is_not_said_to_be_needed_without_bound():
    assert limit_of({}, {"photos": 10.0}, waited_s=10.0, elapsed_s=10.0).needed == 0.0
    assert limit_of({"photos": 1}, {"photos": 10.0}, waited_s=10.0, elapsed_s=10.0).needed == pytest.approx(2.0)


def test_of_late_is_what_counts():
    pace = Pace()
    pace.note_waits([(0, 100.0), (1, 0.0)])
    for second in range(40):
        pace.look(float(second), {"photos": 10 * second})
        if second < 10:
            pace.note_starved("photos", 0.8)
            pace.note_waits([(0, 100.0 + second), (1, float(second))])
        if second == 10:
            assert str(pace.limit()) == "photos limits the step: 10 samples/s of 100 needed"
    assert pace.limit() is None, "that was long ago"
    assert pace.waited_s == pytest.approx(9.0), "what a rank waited before it was heard of does not count"


def test_a_rank_that_connects_anew_begins_anew():
    pace = Pace()
    for waited_s in (0.0, 5.0, 0.0, 1.0):
        pace.note_waits([(0, waited_s)])
    assert pace.waited_s == pytest.approx(6.0)
