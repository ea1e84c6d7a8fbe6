import pytest

from msd.loader.processes.decide import ENOUGH_ROWS, Timing, holds_lock, shows_in, where_to_transform

MS = 1e-3


def timing(rows, wall, cpu, queued=0.0):
    """Milliseconds."""
    return Timing(num_rows=rows, wall_s=wall * MS, cpu_s=cpu * MS, queued_s=queued * MS)


ALONE = timing(50, 100, 100)
NONE = Timing()


@pytest.mark.parametrize(
    ("alone", "together", "span", "found"),
    [
        pytest.param(NONE, NONE, 0, None, id="nothing measured"),
        pytest.param(timing(ENOUGH_ROWS - 1, 9, 9), NONE, 0, None, id="too few rows"),
        pytest.param(timing(500, 100, 100), NONE, 0, "threads", id="rows that cost less than sending them"),
        pytest.param(timing(64, 6400, 3), NONE, 0, "threads", id="rows that wait for a disk and do little"),
        pytest.param(ALONE, timing(10, 40, 20), 20, None, id="two threads, not long enough"),
        pytest.param(ALONE, timing(50, 200, 100), 100, "processes", id="one waits while the other runs"),
        pytest.param(ALONE, timing(50, 100, 100), 50, "threads", id="both run at once"),
        pytest.param(ALONE, timing(50, 120, 100), 60, "threads", id="a fifth of the time under the lock"),
        pytest.param(ALONE, timing(50, 150, 100), 75, "processes", id="half of the time lost"),
        pytest.param(ALONE, timing(50, 300, 100, queued=195), 160, None, id="no core was free: nothing shows"),
        pytest.param(ALONE, timing(50, 300, 100, queued=170), 160, "processes", id="few cores free, and the lock held"),
        pytest.param(timing(50, 300, 100), timing(50, 300, 100), 150, None, id="as much waiting as alone"),
        pytest.param(timing(50, 200, 100), timing(50, 300, 100), 150, "processes", id="another source holds it too"),
    ],
)
def test_where_transforms_run_is_read_off_what_they_took(alone, together, span, found):
    assert where_to_transform(alone, together, span * MS) == found


def test_waiting_for_a_core_is_no_waiting_for_the_lock():
    assert timing(1, 10, 4, queued=5).blocked_s == pytest.approx(1 * MS)
    assert timing(1, 10, 6, queued=5).blocked_s == 0
    assert holds_lock(ALONE, timing(50, 500, 100, queued=400), 1.0) is None


def test_two_threads_show_nothing_before_the_lock_has_changed_hands():
    assert [shows_in(ALONE, num_rows) for num_rows in (0, 1, 4, 5, 32)] == [False, False, False, True, True]


def test_timings_add_up():
    assert timing(1, 2, 3, 4) + timing(10, 20, 30, 40) == timing(11, 22, 33, 44)
