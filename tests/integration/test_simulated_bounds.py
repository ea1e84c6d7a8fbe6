"""Slow, late, absent and leaving ranks, slow sources, lost hosts: bounds hold and the outcome is the documented one."""

import json

import numpy as np
import pytest

from msd.errors import BadSampleRateError, ClosedError, ConfigError, DeadlineError, EngineError, StateError
from msd.runtime.local import LocalEngine
from msd.runtime.simulated import SimulatedEngine, Weather
from msd.testing.scenarios import digest, digests, finite, same_bytes, text, undisturbed, uneven

CALM = Weather(delay_s=(0.0, 0.01), duplicated=0.0)


def start(config=None, **changes) -> SimulatedEngine:
    return SimulatedEngine(text() if config is None else config, **{"seed": 1, "weather": CALM, **changes})


def take(client, count: int) -> list:
    return [next(client) for _ in range(count)]


def most_bytes(engine) -> int:
    return max(one["most_bytes"] for one in engine.stats()["constructors"].values())


def test_a_rank_that_stops_taking_holds_the_others_after_the_depth_and_is_named():
    """Answers RY-4."""
    with start(depth=3) as engine:
        stuck, other = engine.client(1), engine.client(0)
        next(stuck)
        assert [batch.step for batch in take(other, 3)] == [0, 1, 2]
        with pytest.raises(DeadlineError, match=r"rank 0 waits for step 3.*all wait for rank 1 to take step 0"):
            next(other)
        next(stuck)
        assert next(other).step == 3


def test_a_rank_that_never_comes_holds_nobody():
    expected = undisturbed(text(), 20)
    with start() as engine:
        assert [digest(batch) for batch in take(engine.client(1), 20)] == [expected[step, 1] for step in range(20)]


def test_a_rank_that_leaves_early_holds_nobody():
    with start(constructors=2) as engine:
        leaving, staying = engine.client(0), engine.client(1)
        take(leaving, 2)
        leaving.close()
        assert [batch.step for batch in take(staying, 15)] == list(range(15))
        with pytest.raises(ClosedError):
            next(leaving)


def test_a_rank_that_comes_late_gets_every_step_and_little_is_held_for_it(monkeypatch):
    monkeypatch.setattr("msd.coordinator.history.PLANS_KEPT", 3)
    expected = undisturbed(text(), 40)
    with start() as engine:
        take(engine.client(0), 40)
        early = most_bytes(engine)
        late = engine.client(1)
        for step in range(40):
            assert digest(next(late)) == expected[step, 1]
            assert len(engine.stats()["constructors"]["constructor-0"]["steps"]) <= 9
        assert most_bytes(engine) <= 3 * early


@pytest.mark.parametrize("constructors", [1, 2])
def test_what_is_held_does_not_grow_with_the_run(constructors):
    """Answers HF-9, TD-6."""
    with start(constructors=constructors) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(10):
            for client in clients:
                next(client)
        early = most_bytes(engine)
        for _ in range(30):
            for client in clients:
                next(client)
        assert most_bytes(engine) <= 1.5 * early


def test_a_step_larger_than_every_bound_still_completes():
    expected = undisturbed(text(), 12)
    with start(held_bytes=1, buffer_bytes=1, constructors=2) as engine:
        same_bytes(expected, engine)
        bound_to = most_bytes(engine)
    with start(constructors=2) as engine:
        same_bytes(expected, engine)
        assert bound_to < most_bytes(engine)


@pytest.mark.parametrize("slow", ["source:web", "host-0", "rank-1", "constructor-0", "planner"])
def test_a_slow_one_costs_time_and_nothing_else(slow):
    expected = undisturbed(text(), 15)
    weather = Weather(delay_s=(0.0, 0.01), slow={slow: 5.0})
    with start(weather=weather, constructors=2) as engine:
        same_bytes(expected, engine)
        assert engine.stats()["seconds"] > 5.0


@pytest.mark.parametrize("when", [0, 1, 7, 40, 160])
def test_hosts_lost_at_any_moment_change_no_byte(when):
    expected = undisturbed(text(), 20)
    with SimulatedEngine(text(), seed=when, hosts=4, constructors=2, loaders=2) as engine:
        engine.pass_time(when)
        engine.lose("host-1")
        engine.pass_time(when)
        engine.lose("host-2")
        same_bytes(expected, engine, seed=when)
        assert engine.coordinator.placement.alive == ("host-0", "host-3")


def test_hosts_that_held_nothing_take_over():
    expected = undisturbed(text(), 10)
    with start(hosts=6) as engine:
        for number in (0, 1, 2, 3, 5):
            engine.lose(f"host-{number}")
        same_bytes(expected, engine)


def test_the_last_host_gone_ends_the_run_for_every_rank():
    with start(hosts=1) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        next(clients[0])
        engine.lose("host-0")
        for client in clients:
            with pytest.raises(EngineError, match="loader host host-0 is gone and no other is left"):
                take(client, 9)


def test_a_frozen_host_is_named_and_goes_on_where_it_was():
    expected = undisturbed(text(), 10)
    with start(hosts=1) as engine:
        engine.freeze("host-0")
        client = engine.client(0)
        with pytest.raises(DeadlineError, match=r"all wait for row 0 of source '\w+' on loader host host-0"):
            next(client)
        engine.thaw("host-0")
        assert [digest(batch) for batch in take(client, 10)] == [expected[step, 0] for step in range(10)]


def test_finite_data_ends_at_the_same_step_for_every_rank():
    config = finite(mesh={"dp": 2, "tp": 2})
    with start(config, constructors=3) as engine:
        found = digests(engine, 60, seed=2)
    ends = {rank: step for (step, rank), batch in found.items() if batch is None}
    assert ends == dict.fromkeys(range(4), max(step for step, _ in found))
    assert found == undisturbed(config, 60)


@pytest.mark.parametrize("followers", [(), (1,), (0, 3)])
def test_a_state_loaded_on_the_way_is_followed_by_all(followers):
    config = text(mesh={"dp": 2, "tp": 2})
    expected = undisturbed(config, 30)
    with SimulatedEngine(config, seed=4, constructors=2) as engine:
        clients = [engine.client(rank) for rank in range(4)]
        for _ in range(6):
            for client in clients:
                next(client)
        state = json.loads(json.dumps(clients[2].state_dict()))
        assert all(client.state_dict() == state for client in clients)
        for _ in range(3):
            for client in clients:
                next(client)
        for client in clients:
            if client.rank not in followers:
                client.load_state_dict(state)
        for step in range(6, 14):
            for client in reversed(clients):
                assert digest(next(client)) == expected[step, client.rank]


def test_a_state_crosses_between_engines():
    expected = undisturbed(text(), 12)
    with start() as engine:
        client = engine.client(0)
        take(client, 5)
        state = client.state_dict()
    with LocalEngine(text()) as local:
        client = local.client(1)
        client.load_state_dict(state)
        assert [digest(batch) for batch in take(client, 3)] == [expected[step, 1] for step in (5, 6, 7)]
        state = client.state_dict()
    with start(hosts=3, seed=9) as engine:
        client = engine.client(0)
        client.load_state_dict(state)
        assert [digest(batch) for batch in take(client, 3)] == [expected[step, 0] for step in (8, 9, 10)]


def test_another_state_is_refused_with_both_ranks():
    with start() as engine:
        clients = [engine.client(rank) for rank in range(2)]
        states = []
        for _ in range(2):
            for client in clients:
                next(client)
            states.append(clients[0].state_dict())
        clients[0].load_state_dict(states[0])
        with pytest.raises(StateError, match=r"rank 1 .*rank 0"):
            clients[1].load_state_dict(states[1])


def test_an_older_client_of_a_rank_no_longer_speaks_for_it():
    with start() as engine:
        old = engine.client(0)
        next(old)
        new = engine.client(0)
        with pytest.raises(EngineError, match="connected again"):
            next(old)
        assert next(new).step == 0


def test_an_error_in_the_data_reaches_every_rank():
    config = uneven()
    sources = {"failing": {**msd_source(config, "failing"), "on_error": {"max_rate": 0.01}}}
    with start(config.replace(sources=sources)) as engine:
        for rank in range(2):
            with pytest.raises(BadSampleRateError, match="failing"):
                take(engine.client(rank), 40)


def msd_source(config, name: str) -> dict:
    given = config.sources[name]
    return {"rows": given.rows, "transforms": given.transforms, "shuffle": given.shuffle}


def test_which_and_stats_tell_what_the_local_engine_tells():
    with start() as engine, LocalEngine(text()) as local:
        for rank in range(2):
            assert np.array_equal(
                take(engine.client(rank), 3)[2].microbatches[0].input_ids,
                take(local.client(rank), 3)[2].microbatches[0].input_ids,
            )
        assert engine.which(1) == local.which(1)
        assert engine.which(7) == local.which(7)
        engine.pass_time(1000)
        stats = engine.stats()
        assert json.loads(json.dumps(stats)) == stats
        assert (stats["runtime"], stats["watermark"], stats["generation"]) == ("simulated", 1, 0)
        assert engine.dashboard_link is None


def test_a_step_after_the_end_does_not_exist():
    with start(finite()) as engine, pytest.raises(ConfigError, match="step 500 does not exist: the run ends before"):
        engine.which(500)


def test_a_closed_engine_refuses_and_closes_twice():
    engine = start()
    client = engine.client(0)
    engine.close()
    engine.close()
    with pytest.raises(ClosedError):
        next(client)
