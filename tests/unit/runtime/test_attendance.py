"""Which ranks are there, and where they stand, as their constructor knows it."""

from msd.coordinator.standing import RankStanding
from msd.runtime.dask.attendance import Attendance


def arrived(stated: RankStanding | None = None, generation: int = 1) -> Attendance:
    attendance = Attendance()
    attendance.arrive(0, "loop", session=4, generation=generation, first_step=5, num_loads=1, stated=stated)
    return attendance


def test_a_rank_that_starts_stands_where_the_generation_begins():
    attendance = arrived()
    assert attendance.asked(1) == [[0, 4, 5]]
    assert (attendance.connected, attendance.most_session) == ([0], 4)


def test_a_rank_that_comes_back_stands_where_it_said_with_the_position_that_it_brought():
    stated = RankStanding(rank=0, generation=1, next_step=8, progress={"step": 8})
    (found,) = arrived(stated).standings()
    assert found == RankStanding(rank=0, generation=1, next_step=8, num_loads=1, session=4, progress={"step": 8})


def test_a_rank_of_an_older_generation_follows_to_the_present_one():
    stated = RankStanding(rank=0, generation=0, next_step=8, progress={"step": 8})
    (found,) = arrived(stated).standings()
    assert (found.generation, found.next_step, found.progress) == (1, 5, None)


def test_a_rank_goes_forward_only_unless_it_loads():
    attendance = arrived()
    assert attendance.asks(0, 1, 6)
    assert not attendance.asks(0, 1, 6)
    assert not attendance.asks(0, 1, 5)
    assert attendance.asked(1) == [[0, 4, 6]]
    attendance.loaded(0, 1, 5, 2)
    assert attendance.asked(1) == [[0, 4, 5]]
    assert attendance.standings()[0].num_loads == 2


def test_how_far_a_rank_has_come_is_known_once_it_fetches_and_until_it_loads():
    attendance = arrived()
    assert attendance.lacks(0, 1) is None
    assert attendance.fetches(0, 1, 7)
    assert not attendance.fetches(0, 1, 8)
    assert not attendance.fetches(0, 0, 2), "of another generation"
    assert (attendance.lacks(0, 1), attendance.lacks(0, 2)) == (8, None)
    attendance.asks(0, 1, 9)
    assert attendance.lacks(0, 1) == 9
    attendance.loaded(0, 1, 5, 2)
    assert attendance.lacks(0, 1) is None


def test_a_rank_that_left_is_known_and_asks_for_nothing():
    attendance = arrived()
    assert not attendance.leave(0, 3)
    assert attendance.leave(0, 4)
    assert not attendance.speaks(0, 4)
    assert (attendance.connected, attendance.asked(1)) == ([], [])
    assert attendance.standings()[0].session == 0


def test_another_client_finds_a_rank_taken_and_the_same_one_does_not():
    attendance = arrived()
    assert attendance.is_taken(0, "another")
    assert not attendance.is_taken(0, "loop")
    attendance.leave(0, 4)
    assert not attendance.is_taken(0, "another")
