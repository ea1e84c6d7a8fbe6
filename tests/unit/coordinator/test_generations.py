import pytest

from msd.coordinator import Generations, Position, RankStanding
from msd.errors import EngineError, StateError


def at(rank: int, generation: int, next_step: int) -> RankStanding:
    return RankStanding(rank=rank, generation=generation, next_step=next_step)


def make() -> Generations:
    return Generations(first_step=0, digest="start")


def test_a_rank_that_comes_late_starts_where_the_generation_does():
    generations = make()
    first = generations.connect(0)
    generations.asks(0, first, 2)
    late = generations.connect(1)
    assert generations.asked(0, first) == Position(0, 2)
    assert generations.asked(1, late) == Position(0, 0)


def test_a_rank_that_did_not_load_follows():
    generations = make()
    loading, following = generations.connect(0), generations.connect(1)
    generations.asks(1, following, 1)
    assert generations.load(0, step=7, digest="seven")
    assert generations.asked(1, following) == Position(1, 7)
    assert generations.asked(0, loading) == Position(1, 7)


def test_the_nth_load_of_another_rank_joins_if_the_state_is_the_same():
    generations = make()
    generations.connect(0)
    generations.connect(1)
    assert generations.load(0, step=7, digest="seven")
    assert not generations.load(1, step=7, digest="seven")
    assert generations.generation == 1


def test_a_load_of_another_state_is_refused_with_both_ranks():
    generations = make()
    generations.connect(0)
    generations.connect(3)
    generations.load(0, step=7, digest="seven")
    with pytest.raises(StateError, match=r"rank 3 .* rank 0 .*step 8 against step 7"):
        generations.load(3, step=8, digest="eight")


def test_a_refused_load_changes_nothing():
    generations = make()
    generations.connect(0)
    session = generations.connect(1)
    generations.load(0, step=7, digest="seven")
    with pytest.raises(StateError):
        generations.load(1, step=8, digest="eight")
    assert generations.asked(1, session) == Position(1, 7)
    assert not generations.load(1, step=7, digest="seven")


def test_a_second_load_opens_a_second_generation():
    generations = make()
    generations.connect(0)
    generations.connect(1)
    generations.load(0, step=7, digest="seven")
    assert generations.load(0, step=3, digest="three")
    assert generations.generation == 2
    with pytest.raises(StateError):
        generations.load(1, step=9, digest="nine")


def test_an_older_client_of_a_rank_is_refused():
    generations = make()
    old = generations.connect(0)
    generations.connect(0)
    with pytest.raises(EngineError, match="connected again"):
        generations.asked(0, old)


def test_the_watermark_waits_for_the_slowest_connected_rank():
    generations = make()
    fast, slow = generations.connect(0), generations.connect(1)
    generations.asks(0, fast, 5)
    assert (generations.watermark, generations.slowest, generations.fastest) == (-1, 0, 5)
    generations.asks(1, slow, 2)
    assert generations.watermark == 1
    generations.disconnect(1, slow)
    assert generations.watermark == 4


def test_before_any_rank_came_all_are_expected_at_the_first_step():
    generations = Generations(first_step=0, digest="start", groups={"near": [0, 1], "far": [2]})
    assert generations.next_steps() == generations.next_steps("far") == [0]
    session = generations.connect(0)
    generations.asks(0, session, 3)
    generations.connect(1)
    assert generations.next_steps() == generations.next_steps("near") == [0, 3]
    assert generations.next_steps("far") == []
    assert (generations.group_of(2), generations.ranks_at(3)) == ("far", [0])


def test_a_load_brings_every_connected_rank_to_its_step():
    generations = Generations(first_step=0, digest="start", groups={"all": range(3)})
    sessions = [generations.connect(rank) for rank in range(3)]
    for rank, session in enumerate(sessions):
        generations.asks(rank, session, rank)
    generations.disconnect(2, sessions[2])
    generations.load(0, step=7, digest="seven")
    assert generations.next_steps() == generations.next_steps("all") == [7]
    generations.asks(1, sessions[1], 9)
    assert generations.next_steps() == [7, 9]
    generations.disconnect(1, sessions[1])
    assert generations.next_steps("all") == [7]


def test_a_rank_only_goes_forward_within_its_session():
    generations = make()
    session = generations.connect(0)
    generations.asks(0, session, 5)
    generations.asks(0, session, 4)
    assert generations.slowest == 5


def test_a_rank_that_was_connected_before_says_where_it_stands():
    generations = make()
    session = generations.connect(0, at(0, 0, 12))
    assert generations.asked(0, session) == Position(0, 12)
    generations.load(0, step=7, digest="seven")
    late = generations.connect(1, at(1, 0, 12))
    assert generations.asked(1, late) == Position(1, 7)


@pytest.mark.parametrize("stands", [(0, 2), (1, 9)])
def test_a_rank_that_stands_where_this_run_never_was_is_refused(stands):
    generations = Generations(first_step=3, digest="three")
    with pytest.raises(StateError, match=f"rank 0 stands at step {stands[1]} of generation {stands[0]}"):
        generations.connect(0, at(0, *stands))


@pytest.mark.parametrize(("session", "generation", "counts"), [(2, 0, True), (1, 0, False), (2, 1, False)])
def test_what_an_older_client_said_no_longer_counts(session, generation, counts):
    generations = make()
    generations.connect(0)
    generations.connect(0)
    assert generations.speaks(0, session, generation) is counts


def test_a_step_before_the_generation_is_refused():
    generations = Generations(first_step=10, digest="ten")
    session = generations.connect(0)
    with pytest.raises(StateError, match="asks for step 9, but generation 0 starts at step 10"):
        generations.asks(0, session, 9)
