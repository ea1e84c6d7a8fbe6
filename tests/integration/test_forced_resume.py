"""A run goes on over a forced change at every step, whatever waits and wherever a row was left half drawn."""

import pytest

import msd
from msd.errors import StateError

LONG = {"rows": [{"ids": list(range(1, 20 + 37 * n % 150))} for n in range(80)]}
SHORT = {"rows": [{"ids": list(range(1, 3 + 11 * n % 50))} for n in range(120)]}


def config(eos=None, **changes):
    tokens = [{"kind": "tokens", "field": "ids", **({} if eos is None else {"append_eos_id": eos})}]
    settings = {
        "sources": {
            "long": {**LONG, "transforms": tokens, "overflow": "split"},
            "short": {**SHORT, "transforms": [{"kind": "tokens", "field": "ids"}]},
        },
        "batch": {"sequence_length": 64, "global_batch_size": 2},
        "mesh": {"dp": 1},
        "num_microbatches": 1,
    }
    return msd.Config(**settings | changes)


@pytest.fixture(scope="module")
def states():
    with msd.start(config(), runtime="local") as engine, engine.client(0) as client:
        found = [client.state_dict()]
        for _ in range(25):
            next(client)
            found.append(client.state_dict())
    return found


@pytest.mark.parametrize("changed", [config(seed=99), config(eos=7)], ids=["seed", "transforms"])
def test_each_state_goes_on_by_force_and_every_sample_is_there(states, changed):
    with msd.start(changed, runtime="local") as engine, engine.client(0) as client:
        for step, state in enumerate(states):
            with pytest.raises(StateError, match="load it with force=True"):
                client.load_state_dict(state)
            client.load_state_dict(state, force=True)
            batches = [next(client) for _ in range(3)]
            assert [batch.step for batch in batches] == [step, step + 1, step + 2]
            ids = [sample for batch in batches for sample in batch.sample_ids]
            assert len(ids) == len(set(ids))


def test_after_a_forced_change_states_need_no_force(states):
    with msd.start(config(seed=99), runtime="local") as engine, engine.client(0) as client:
        client.load_state_dict(states[7], force=True)
        next(client)
        state, expected = client.state_dict(), next(client).sample_ids
    with msd.start(config(seed=99), runtime="local") as engine, engine.client(0) as client:
        client.load_state_dict(state)
        assert next(client).sample_ids == expected
