"""The same bytes on a simulated cluster as in one process, whatever its shape and whatever befalls its messages."""

import random
from functools import cache

import pytest

from msd.runtime.simulated import SimulatedEngine, Weather
from msd.testing.scenarios import MESHES, PACKINGS, SCENARIOS, digest, same_bytes, text, undisturbed

STEPS = 50
SHAPES = [
    {"hosts": 1, "constructors": 1, "loaders": 1},
    {"hosts": 2, "constructors": 1, "loaders": 2},
    {"hosts": 4, "constructors": 2, "loaders": 7},
]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["text", "image-text"])
def test_batches_do_not_depend_on_loaders_hosts_constructors_or_delays(name, packing):
    config = SCENARIOS[name](packing)
    expected = undisturbed(config, STEPS)
    assert len(expected) == 2 * STEPS
    assert None not in expected.values()
    for seed, shape in enumerate(SHAPES):
        with SimulatedEngine(config, seed=seed, **shape) as engine:
            same_bytes(expected, engine, seed=seed)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "-".join(mesh))
def test_what_ranks_encode_for_one_another_does_not_depend_on_who_prepares_it(mesh):
    config = SCENARIOS["hybrid"](mesh=mesh)
    expected = undisturbed(config, 20)
    for seed, shape in enumerate(SHAPES[1:]):
        with SimulatedEngine(config, seed=seed, **shape) as engine:
            same_bytes(expected, engine, seed=seed)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["finite", "uneven", "many-sources", "moving"])
def test_ends_failures_filters_and_tiny_sources_are_the_same(name, packing):
    config = SCENARIOS[name](packing=packing)
    expected = undisturbed(config, 25)
    with SimulatedEngine(config, seed=5, hosts=3, constructors=2, loaders=2) as engine:
        same_bytes(expected, engine, seed=5)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "-".join(mesh))
def test_every_mesh_is_served_alike(mesh):
    config = text(mesh=mesh, num_microbatches=1, broadcast=["tp"] if "tp" in mesh else [])
    expected = undisturbed(config, 20)
    with SimulatedEngine(config, seed=3, hosts=2, constructors=3, loaders={"web": 3}) as engine:
        same_bytes(expected, engine, seed=3)


def test_the_same_seed_gives_the_same_schedule():
    def schedule(seed):
        with SimulatedEngine(text(), seed=seed) as engine:
            same_bytes(expected, engine)
            stats = engine.stats()
            return stats["seconds"], stats["messages"]

    expected = undisturbed(text(), 8)
    assert schedule(1) == schedule(1)
    assert schedule(1) != schedule(2)


def test_a_difference_is_named_by_step_and_rank():
    expected = undisturbed(text(), 4) | {(2, 1): "another"}
    with SimulatedEngine(text(), seed=1) as engine, pytest.raises(AssertionError, match=r"step 2 of rank 1 .* another"):
        same_bytes(expected, engine)


CHAOS_STEPS = 24


def chaos_config():
    return text(mesh={"dp": 4}, num_microbatches=1)


@cache
def chaos_expected():
    return undisturbed(chaos_config(), CHAOS_STEPS)


class Chaos:
    """Ranks that come, take, load and leave while hosts die and messages go astray: all of it drawn from a seed."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.depth, num_hosts = draw.choice([2, 3, 5]), draw.randint(1, 4)
        slowed = draw.choice(["host-0", "planner", "rank-0", "source:web", "constructor-0"])
        self.engine = SimulatedEngine(
            chaos_config(),
            seed=seed,
            hosts=num_hosts,
            constructors=draw.randint(1, 4),
            loaders=draw.choice([1, 2, 7]),
            depth=self.depth,
            held_bytes=draw.choice([1, 1 << 20]),
            weather=Weather(
                delay_s=(0.0, draw.choice([0.01, 0.5])),
                duplicated=draw.choice([0.0, 0.3]),
                lost=draw.choice([0.0, 0.2]),
                slow={slowed: draw.choice([0.0, 2.0])},
            ),
        )
        self.alive = [f"host-{number}" for number in range(num_hosts)]
        self.world = list(range(4))
        self.clients, self.next_step = {}, {}
        self.leaves_left = 3

    def run(self) -> None:
        with self.engine:
            while len(self.clients) < len(self.world) or min(self.next_step.values()) < CHAOS_STEPS:
                self.act(self.draw.random())

    def act(self, chance: float) -> None:
        draw, engine = self.draw, self.engine
        if chance < 0.02 and len(self.alive) > 1:
            engine.lose(self.alive.pop(draw.randrange(len(self.alive))))
        elif chance < 0.04:
            engine.silent(draw.choice(self.alive))
        elif chance < 0.08:
            engine.pass_time(draw.randint(1, 60))
        elif chance < 0.10 and len(self.clients) == len(self.world):
            self.all_load(draw.choice(self.world))
        elif chance < 0.12 and self.clients and self.leaves_left:
            self.leaves_left -= 1
            rank = draw.choice(sorted(self.clients))
            self.clients.pop(rank).close()
            self.next_step.pop(rank)
        elif chance < 0.3 and len(self.clients) < len(self.world):
            rank = draw.choice([rank for rank in self.world if rank not in self.clients])
            self.clients[rank], self.next_step[rank] = engine.client(rank), engine.coordinator.first_step
        elif self.clients:
            self.take()

    def all_load(self, saver: int) -> None:
        state = self.clients[saver].state_dict()
        for rank in self.draw.sample(self.world, len(self.world)):
            self.clients[rank].load_state_dict(state)
            self.engine.pass_time(self.draw.randint(0, 20))
        self.next_step = dict.fromkeys(self.world, self.next_step[saver])

    def take(self) -> None:
        # A rank counts as standing at the step it was handed until it asks for the next one.
        slowest = max(self.engine.coordinator.first_step, min(self.next_step.values()) - 1)
        may = [rank for rank in self.clients if self.next_step[rank] < min(CHAOS_STEPS, slowest + self.depth)]
        if may:
            rank = self.draw.choice(may)
            batch = next(self.clients[rank])
            assert batch.step == self.next_step[rank]
            assert digest(batch) == chaos_expected()[batch.step, rank]
            self.next_step[rank] += 1


@pytest.mark.parametrize("seed", range(24))
def test_whatever_happens_every_rank_gets_its_bytes(seed):
    """Answers TF-4."""
    Chaos(seed).run()
