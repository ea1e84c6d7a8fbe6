import pytest
from link_run import make_batch, position_after

from msd.client.link.messages import Ended, Moved
from msd.client.link.prefetch import Prefetch
from msd.errors import BadSampleRateError, EngineError


def begun(depth=2, *, generation=0, first_step=0):
    prefetch = Prefetch(depth=depth)
    assert prefetch.moved(Moved(generation=generation, first_step=first_step, position="start"))
    return prefetch


def fetch(prefetch):
    request = prefetch.request()
    prefetch.arrived(request["id"], make_batch(request["step"]))
    return request


def test_at_most_depth_steps_are_held_and_one_request_is_open():
    prefetch = begun(depth=2)
    assert [fetch(prefetch)["step"] for _ in range(2)] == [0, 1]
    assert prefetch.request() is None
    assert prefetch.hand_out().step == 0
    request = prefetch.request()
    assert (request["step"], prefetch.is_asking) == (2, True)
    assert prefetch.request() is None


def test_a_step_is_taken_when_the_loop_asks_for_the_next_one():
    prefetch = begun(depth=1)
    assert fetch(prefetch)["taken_through"] == -1
    prefetch.asks()
    prefetch.hand_out()
    assert fetch(prefetch)["taken_through"] == -1
    prefetch.asks()
    prefetch.hand_out()
    assert prefetch.request()["taken_through"] == 0
    assert prefetch.notice() is None
    prefetch.asks()
    assert prefetch.notice() == {"generation": 0, "taken_through": 1, "waited_s": 0.0}
    assert prefetch.notice() is None


def test_the_position_follows_what_was_handed_out_not_what_was_fetched():
    prefetch = begun()
    fetch(prefetch)
    assert prefetch.position == "start"
    prefetch.hand_out()
    assert prefetch.position == position_after(0)


def test_a_move_drops_what_is_held_and_voids_the_open_request():
    prefetch = begun()
    fetch(prefetch)
    late = prefetch.request()
    assert prefetch.moved(Moved(generation=1, first_step=9, position="there"))
    prefetch.arrived(late["id"], make_batch(1))
    assert (prefetch.is_ready, prefetch.position, prefetch.generation) == (False, "there", 1)
    assert prefetch.request() == {"id": 3, "step": 9, "generation": 1, "taken_through": 8, "waited_s": 0.0}


def test_an_older_move_changes_nothing_but_a_load_goes_back():
    prefetch = begun(generation=3)
    fetch(prefetch)
    assert not prefetch.moved(Moved(generation=3, first_step=0, position="x"))
    assert not prefetch.moved(Moved(generation=2, first_step=5, position="x"))
    assert prefetch.is_ready
    prefetch.restart(Moved(generation=3, first_step=0, position="x"))
    assert not prefetch.is_ready


@pytest.mark.parametrize("outcome", [Ended(step=1), BadSampleRateError("too many")])
def test_what_was_fetched_is_handed_out_before_the_end_and_then_it_is_asked_again(outcome):
    prefetch = begun()
    fetch(prefetch)
    prefetch.came_to(prefetch.request()["id"], outcome)
    assert prefetch.request() is None
    assert prefetch.hand_out().step == 0
    if isinstance(outcome, Ended):
        assert prefetch.hand_out() is None
    else:
        with pytest.raises(BadSampleRateError, match="too many"):
            prefetch.hand_out()
    assert prefetch.request()["step"] == 1


def test_after_a_lost_connection_what_is_held_stays_and_all_that_was_taken_is_said_again():
    prefetch = begun()
    for _ in range(2):
        fetch(prefetch)
    prefetch.asks()
    prefetch.hand_out()
    prefetch.asks()
    lost = prefetch.request()
    prefetch.forget_request()
    prefetch.arrived(lost["id"], make_batch(2))
    assert prefetch.request() == {"id": 4, "step": 2, "generation": 0, "taken_through": 0, "waited_s": 0.0}
    assert prefetch.hand_out().step == 1


def test_a_step_that_was_not_asked_for_is_an_error():
    prefetch = begun()
    prefetch.arrived(prefetch.request()["id"], make_batch(5))
    with pytest.raises(EngineError, match="rank 0 asked for step 0 and got step 5"):
        prefetch.hand_out()
