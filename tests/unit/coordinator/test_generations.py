import pytest

from msd.coordinator import Generations, Position
from msd.errors import EngineError, StateError


def make() -> Generations:
    return Generations(first_step=0, digest="start")


def test_a_rank_that_comes_late_starts_where_the_generation_does():
    generations = make()
    first = generations.connect(0)
    generations.took(0, 0)
    generations.took(0, 1)
    late = generations.connect(1)
    assert generations.asked(0, first) == Position(0, 2)
    assert generations.asked(1, late) == Position(0, 0)


def test_a_rank_that_did_not_load_follows():
    generations = make()
    loading, following = generations.connect(0), generations.connect(1)
    generations.took(1, 0)
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
    generations.connect(0)
    slow = generations.connect(1)
    for step in range(5):
        generations.took(0, step)
    assert generations.watermark == -2
    generations.took(1, 0)
    generations.took(1, 1)
    assert generations.watermark == 0
    generations.disconnect(1, slow)
    assert generations.watermark == 3
