"""What resuming costs does not grow with how far a run has come: counted in rows and blocks, not in seconds."""

import json

import pytest

from msd.errors import ConfigError
from msd.runtime.local import LocalEngine
from msd.runtime.simulated.engine import SimulatedEngine
from msd.runtime.state import read_state
from msd.testing import scenarios
from msd.testing.far import far_state

FAR = 10**6
COUNTED = ("rows_examined", "rows_read", "block_reads", "parts")
TOKENS = [{"kind": "tokens", "field": "ids"}]


def one_source():
    rows = scenarios.token_rows(1, 6000, 30)
    shuffle = {"block_bytes": "4KiB", "window": 4}
    return scenarios.text(
        sources={"web": {"rows": rows, "transforms": TOKENS, "shuffle": shuffle}}, mixture={"weights": {"web": 1}}
    )


def many_sources():
    return scenarios.many_sources(60)


def images():
    image = {"kind": "image", "field": "png", "patch": 4, "merge": 2, "max_pixels": 576, "min_pixels": 64}
    photos = {
        "rows": scenarios.image_rows(4, 300, 12),
        "transforms": [{**image, "image_token": 1001}, *TOKENS],
        "shuffle": {"block_bytes": "64KiB", "window": 2},
    }
    web = {"rows": scenarios.token_rows(1, 2000, 20), "transforms": TOKENS, "shuffle": {"block_bytes": "4KiB"}}
    return scenarios.text(sources={"web": web, "photos": photos}, mixture={"weights": {"web": 1, "photos": 1}})


CONFIGS = {
    "one-source": one_source,
    "many-sources": many_sources,
    "images": images,
    "uneven-rows": scenarios.uneven,
}


def work_of_the_first_batch(config, state=None):
    """Return what was read and made until rank 0 had a batch, over all sources."""
    with LocalEngine(config) as engine:
        client = engine.client(0)
        if state is not None:
            client.load_state_dict(state)
        step = next(client).step
        counts = engine.stats()["sources"].values()
    return step, {name: sum(source[name] for source in counts) for name in COUNTED}


def most_of_two_windows(config, counted):
    """Return how much more may be touched where a run begins inside a window: what waits may be of the one before."""
    with LocalEngine(config) as engine:
        orders = engine.orders.values()
        blocks = sum(order.window_blocks for order in orders)
        rows = sum(order.window_blocks * -(-order.rows_per_epoch // order.blocks.num_blocks) for order in orders)
    return 2 * (blocks if counted == "block_reads" else rows) + config.batch.global_batch_size


@pytest.mark.parametrize("made", CONFIGS)
def test_the_first_batch_after_a_million_steps_takes_the_work_of_the_first_one(made):
    config = CONFIGS[made]()
    _, fresh = work_of_the_first_batch(config)
    for far in (1000, FAR, 10**9):
        step, work = work_of_the_first_batch(config, far_state(config, far))
        assert step == far
        for counted in COUNTED:
            assert work[counted] <= fresh[counted] + most_of_two_windows(config, counted), (far, counted)


def test_a_run_that_is_moved_before_its_first_step_reads_nothing_where_it_was():
    config = many_sources()
    with LocalEngine(config) as engine:
        client = engine.client(0)
        client.load_state_dict(far_state(config, FAR))
        assert {source[name] for source in engine.stats()["sources"].values() for name in COUNTED} == {0}
        assert next(client).step == FAR


@pytest.mark.parametrize("made", [*CONFIGS, "text"])
def test_a_far_state_is_one_that_a_run_saves(made):
    config = CONFIGS.get(made, scenarios.text)()
    state = far_state(config, FAR)
    parts = read_state(state)
    epochs = [entry["ordinal"] // entry["rows"] for entry in parts.progress["sources"].values()]
    assert parts.step == FAR
    assert min(epochs) > 100
    assert parts.progress["carry"]
    with LocalEngine(config) as engine:
        client = engine.client(1)
        client.load_state_dict(json.loads(json.dumps(state)))
        assert client.state_dict() == state
        assert [next(client).step for _ in range(3)] == [FAR, FAR + 1, FAR + 2]


def test_a_chain_of_resumes_far_along_equals_one_run_there():
    config = scenarios.text()
    state = far_state(config, FAR)

    def taken(state, steps):
        with LocalEngine(config) as engine:
            clients = [engine.client(rank) for rank in range(2)]
            for client in clients:
                client.load_state_dict(state)
            found = [scenarios.digest(next(client)) for _ in range(steps) for client in clients]
            return found, clients[0].state_dict()

    whole, end = taken(state, 9)
    pieces = []
    for steps in (1, 0, 3, 5):
        found, state = taken(state, steps)
        pieces += found
    assert pieces == whole
    assert state == end


def test_every_engine_goes_on_from_a_far_state_alike():
    config = scenarios.text()
    state = far_state(config, FAR)

    def first_steps(engine):
        with engine:
            clients = [engine.client(rank) for rank in range(2)]
            for client in clients:
                client.load_state_dict(state)
            return [scenarios.digest(next(client)) for _ in range(3) for client in clients]

    expected = first_steps(LocalEngine(config))
    for seed, hosts in ((1, 1), (2, 3)):
        assert first_steps(SimulatedEngine(config, seed=seed, hosts=hosts, loaders=hosts, constructors=2)) == expected


@pytest.mark.parametrize(
    ("config", "step", "said"),
    [(scenarios.finite, FAR, "ends at row"), (scenarios.moving, FAR, "ends at row"), (scenarios.text, 9, "10 or more")],
)
def test_a_run_that_ends_before_has_no_far_state(config, step, said):
    with pytest.raises(ConfigError, match=said):
        far_state(config(), step)
