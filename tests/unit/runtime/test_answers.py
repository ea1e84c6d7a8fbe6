"""What a rank of a constructor is answered."""

from types import SimpleNamespace

import pytest

from msd.client.link.messages import Ended, Moved
from msd.errors import EngineError
from msd.runtime.dask.answers import Answers


class Batches:
    """Those of some steps, by step."""

    def __init__(self):
        self.held = {0: "batch 0", 1: "batch 1"}

    def batch(self, generation, step, rank):
        return self.held.get(step)

    def clear(self):
        self.held.clear()


@pytest.fixture
def answers():
    return Answers(SimpleNamespace(end=None, rewind=lambda generation: None), Batches())


def test_what_is_held_is_handed_out_and_the_rest_is_waited_for(answers):
    assert [answers.of(0, 1, 0, step) for step in range(3)] == ["batch 0", "batch 1", None]


def test_a_rank_of_an_older_generation_hears_of_the_newer_one_and_one_of_a_newer_waits(answers):
    answers.rewind({"generation": 2, "first_step": 7, "position": "there"})
    assert answers.of(0, 1, 1, 0) == answers.moved == Moved(generation=2, first_step=7, position="there")
    assert answers.of(0, 1, 2, 0) is None
    assert answers.of(0, 1, 3, 0) is None


def test_an_error_comes_after_what_is_held_and_the_first_one_stays(answers):
    first = EngineError("the first")
    answers.fail(first)
    answers.fail(EngineError("the second"))
    assert [answers.of(0, 1, 0, step) for step in (1, 2)] == ["batch 1", first]
    with pytest.raises(EngineError, match="the first"):
        answers.check_running()


def test_after_the_end_there_is_no_step_and_who_comes_is_welcome():
    answers = Answers(SimpleNamespace(end=2), Batches())
    assert answers.of(0, 1, 0, 2) == Ended(step=2)
    answers.fail(EngineError("closed"))
    answers.check_running()


def test_a_rank_is_refused_in_the_session_that_was_meant_alone(answers):
    answers.refuse({"rank": 1, "generation": 0, "session": 4, "error": EngineError("another state")})
    assert str(answers.of(1, 4, 0, 0)) == "another state"
    assert answers.of(1, 5, 0, 0) == answers.of(0, 4, 0, 0) == "batch 0"
