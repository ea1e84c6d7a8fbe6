"""Asking what a step holds, or will hold: the answer is what ranks get, and nothing of the run moves by it."""

import pytest

import msd
from msd.errors import BadSampleRateError, ConfigError, DeadlineError
from msd.runtime.local import LocalEngine
from msd.runtime.simulated import SimulatedEngine
from msd.testing import scenarios
from msd.testing.far import far_state

ENGINES = {
    "local": LocalEngine,
    "simulated": lambda config: SimulatedEngine(config, seed=3, hosts=2, constructors=2, loaders=2),
}


@pytest.fixture(params=ENGINES)
def started(request):
    return ENGINES[request.param]


def take(engine, steps):
    """Take steps with every rank, and return by step what each rank holds."""
    clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
    return {
        batch.step: [sorted(tuple(sample_id) for sample_id in one.sample_ids) for one in (batch, *others)]
        for batch, *others in ([next(client) for client in clients] for _ in range(steps))
    }


def told(documents):
    return sorted((entry["source"], entry["ordinal"], entry["part"]) for entry in documents)


def test_steps_behind_ahead_and_at_hand_are_told_as_ranks_hold_them(started):
    with started(scenarios.text()) as engine:
        ahead = {(step, rank): told(engine.which(step, rank)) for step in (0, 2, 150) for rank in range(2)}
        held = take(engine, 160)
        behind = {(step, rank): told(engine.which(step, rank)) for step in (0, 2, 150) for rank in range(2)}
        assert told(engine.which(2)) == sorted(one for of_rank in held[2] for one in of_rank)
    assert ahead == behind == {(step, rank): held[step][rank] for step, rank in ahead}


def test_a_question_moves_nothing_of_the_run(started):
    config = scenarios.text()
    expected = scenarios.undisturbed(config, 8)
    with started(config) as engine:
        engine.which(40)
        stats = engine.stats()
        # What a run plans ahead of its ranks, it plans meanwhile.
        assert stats["next_step"] == stats["steps_planned"] <= 3
        assert stats["watermark"] == -1
        scenarios.same_bytes(expected, engine)


def test_steps_before_the_run_and_after_its_end_are_refused_by_name(started):
    config = scenarios.finite()
    num_steps = min(step for (step, _), held in scenarios.undisturbed(config, 100).items() if held is None)
    with LocalEngine(config) as engine:
        client = engine.client(0)
        for _ in range(3):
            next(client)
        state = client.state_dict()
    with started(config) as engine:
        with pytest.raises(ConfigError, match=f"step {num_steps} does not exist: the run ends before"):
            engine.which(num_steps)
        assert engine.which(num_steps - 1)
        client = engine.client(0)
        client.load_state_dict(state)
        with pytest.raises(ConfigError, match="step 2 lies before step 3, where this run began"):
            engine.which(2)
        assert next(client).step == 3
        assert engine.which(3)


@pytest.mark.parametrize(
    ("asked", "said"),
    [((-1,), "0 or more"), ((1.5,), "step"), ((0, 2), "outside the mesh"), ((0, -1), "outside"), ((0, "1"), "rank")],
)
def test_what_is_no_step_or_rank_is_refused(started, asked, said):
    with started(scenarios.text()) as engine, pytest.raises(ConfigError, match=said):
        engine.which(*asked)


def test_a_step_too_far_ahead_ends_by_the_deadline_and_the_run_goes_on(started):
    config = scenarios.text(runtime={"deadline_s": 1})
    expected = scenarios.undisturbed(config, 3)
    with started(config) as engine:
        with pytest.raises(DeadlineError, match="step 1000000"):
            engine.which(10**6)
        scenarios.same_bytes(expected, engine)


def test_far_along_a_step_is_told_at_once(started):
    config = scenarios.text()
    with started(config) as engine:
        client = engine.client(0)
        client.load_state_dict(far_state(config, 10**6))
        assert {entry["epoch"] for entry in engine.which(10**6 + 2)} != {0}
        assert next(client).step == 10**6


def test_an_edit_may_still_be_made_of_a_step_that_was_told():
    with LocalEngine(scenarios.text()) as engine:
        source, ordinal, _ = told(engine.which(5))[0]
        assert engine.skip(source, ordinal, at_step=0) == 0
        assert (source, ordinal) not in {found[:2] for step in range(8) for found in told(engine.which(step))}
        engine.skip_steps(2, at_step=3)
        held = take(engine, 8)
        assert told(engine.which(7)) == sorted(one for of_rank in held[7] for one in of_rank)


def test_what_is_wrong_ahead_is_told_to_who_asks_and_ends_no_run(started):
    def sound(sample):
        if sample["ids"][0] > 300:
            raise ValueError("too large")
        return sample

    rows = [{"ids": [number // 10 + 1] * 30} for number in range(4000)]
    source = {"rows": rows, "transforms": [sound, {"kind": "tokens", "field": "ids"}], "shuffle": False}
    config = scenarios.text(sources={"web": source}, mixture={"weights": {"web": 1}})
    with started(config) as engine:
        with pytest.raises(BadSampleRateError, match="web"):
            engine.which(120)
        assert sorted(take(engine, 3)) == [0, 1, 2]


def test_an_engine_that_is_closed_tells_nothing(started):
    with started(scenarios.text()) as engine:
        pass
    with pytest.raises(msd.errors.ClosedError):
        engine.which(0)
