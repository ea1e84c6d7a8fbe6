"""A saved position goes on under another mesh and another strategy, with the samples of the undisturbed run."""

import pytest

import msd
from msd.testing.scenarios import SCENARIOS

TOGETHER = 3
REST = 4


def take(engine, steps: int):
    """Return the sample ids of each step, over all ranks, how many images are encoded in it, and the position after."""
    clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
    found = []
    for _ in range(steps):
        batches = [next(client) for client in clients]
        ids = {tuple(sample_id) for batch in batches for sample_id in batch.sample_ids}
        shares = [share for batch in batches for share in batch.encoder]
        found.append((ids, sum(len(share.grids) for share in shares)))
    return found, clients[0].state_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {"mesh": {"dp": 4}},
        {"mesh": {"pp": 2, "dp": 2, "tp": 2}},
        {"strategy": "vlm_backbone"},
        {"strategy": "vlm_joint", "mesh": {"dp": 1}},
    ],
    ids=str,
)
def test_the_samples_of_later_steps_are_those_of_the_undisturbed_run(changes):
    config = SCENARIOS["hybrid"](mesh={"dp": 2})
    with msd.start(config, runtime="local") as engine:
        undisturbed, _ = take(engine, TOGETHER + REST)
    with msd.start(config, runtime="local") as engine:
        _, state = take(engine, TOGETHER)
    with msd.start(config.replace(**changes), runtime="local") as engine:
        engine.client(rank=0).load_state_dict(state)
        rest, _ = take(engine, REST)
        plans = [engine.plan(TOGETHER + number) for number in range(REST)]
    assert [ids for ids, _ in rest] == [ids for ids, _ in undisturbed[TOGETHER:]]
    if "strategy" not in changes:
        assert [images for _, images in rest] == [images for _, images in undisturbed[TOGETHER:]]
        assert [images for _, images in rest] == [int(plan.num_images_D.sum()) for plan in plans]
    else:
        assert all(plan.encoder is None for plan in plans)


def test_a_position_of_another_strategy_goes_on_with_images_encoded_apart():
    config = SCENARIOS["hybrid"](mesh={"dp": 2})
    with msd.start(config.replace(strategy="vlm_backbone"), runtime="local") as engine:
        undisturbed, _ = take(engine, TOGETHER + REST)
    with msd.start(config.replace(strategy="vlm_backbone"), runtime="local") as engine:
        _, state = take(engine, TOGETHER)
    with msd.start(config, runtime="local") as engine:
        engine.client(rank=0).load_state_dict(state)
        rest, _ = take(engine, REST)
    assert [ids for ids, _ in rest] == [ids for ids, _ in undisturbed[TOGETHER:]]
    assert all(images > 0 for _, images in rest)
