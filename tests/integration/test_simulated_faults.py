"""Any process dies or freezes at any moment, alone or not: every rank gets its bytes, within a bound of time."""

import random
from functools import cache

import pytest

from msd.runtime.simulated import Care, SimulatedEngine, Weather
from msd.testing.scenarios import digest, text, undisturbed

STEPS = 16
NUM_RANKS = 4
LONGEST_S = 60.0
"""Of simulated time, for a step that one fault or two hold up: silence, a start, and what is asked again after."""


def config(packing):
    return text(
        packing,
        mesh={"dp": NUM_RANKS},
        num_microbatches=1,
        batch={"sequence_length": 64, "global_batch_size": NUM_RANKS},
    )


@cache
def expected(packing):
    return undisturbed(config(packing), STEPS)


class Faults:
    """Ranks that take their steps while processes are killed, frozen and thawed: all of it drawn from a seed."""

    def __init__(self, seed: int, *, faults: int = 2, begins_again: bool = False) -> None:
        draw = self.draw = random.Random(seed)
        self.depth = draw.choice([2, 3, 5])
        num_hosts, num_shadows, num_constructors = draw.randint(1, 3), draw.randint(0, 2), draw.randint(1, 3)
        # What is planned matters little here, and concat is planned fastest.
        self.packing = "concat" if seed % 6 else "best_fit"
        self.engine = SimulatedEngine(
            config(self.packing),
            seed=seed,
            hosts=num_hosts,
            shadows=num_shadows,
            constructors=num_constructors,
            loaders=draw.choice([1, 2, 5]),
            depth=self.depth,
            held_bytes=draw.choice([1, 1 << 20]),
            weather=Weather(
                delay_s=(0.0, draw.choice([0.01, 0.3])),
                duplicated=draw.choice([0.0, 0.3]),
                lost=draw.choice([0.0, 0.1]),
                resend_s=draw.choice([0.1, 0.7]),
            ),
            care=Care(silence_s=draw.choice([2.0, 4.0]), start_s=draw.choice([0.1, 3.0]), kills=draw.random() < 0.7),
        )
        self.posts = [
            "planner",
            *(f"constructor-{number}" for number in range(num_constructors)),
            *(f"host-{number}" for number in range(num_hosts + num_shadows)),
        ]
        self.faults = sorted(draw.randrange(NUM_RANKS * STEPS) for _ in range(faults))
        self.begins_again = draw.randrange(NUM_RANKS * STEPS) if begins_again else None
        self.clients, self.next_step = {}, dict.fromkeys(range(NUM_RANKS), 0)
        self.longest_s = 0.0

    def run(self) -> None:
        with self.engine:
            for number in range(NUM_RANKS * STEPS):
                while self.faults and self.faults[0] <= number:
                    self.faults.pop(0)
                    self.disturb()
                if number == self.begins_again:
                    for rank in range(NUM_RANKS):
                        self.client(rank)
                    self.engine.start_again()
                self.take()
        assert self.longest_s <= LONGEST_S, f"a step took {self.longest_s:.1f} s"

    def disturb(self) -> None:
        draw, engine = self.draw, self.engine
        post = draw.choice(self.posts)
        if draw.random() < 0.5:
            engine.kill(post)
        else:
            engine.freeze(post, draw.choice([None, 0.5, 3.0, 10.0]))
        engine.pass_time(draw.choice([0, 0, 5, 60]))

    def take(self) -> None:
        # A rank counts as standing at the step it was handed until it asks for the next one.
        slowest = min(self.next_step.values())
        last = min(STEPS, slowest + 2, max(0, slowest - 1) + self.depth)
        rank = self.draw.choice([rank for rank, step in self.next_step.items() if step < last])
        client, began_s = self.client(rank), self.engine.now_s
        batch = next(client)
        self.longest_s = max(self.longest_s, self.engine.now_s - began_s)
        assert (batch.step, batch.rank) == (self.next_step[rank], rank)
        assert digest(batch) == expected(self.packing)[batch.step, rank], (
            f"step {batch.step} of rank {rank} has other bytes"
        )
        self.next_step[rank] += 1

    def client(self, rank: int):
        if rank not in self.clients:
            self.clients[rank] = self.engine.client(rank)
        return self.clients[rank]


def run(seeds, **changes) -> None:
    for seed in seeds:
        try:
            Faults(seed, **changes).run()
        except BaseException as error:
            error.add_note(f"seed {seed}, {changes}")
            raise


@pytest.mark.parametrize("block", range(10))
def test_whatever_dies_or_freezes_every_rank_gets_its_bytes(block):
    run(range(30 * block, 30 * block + 15), faults=1)
    run(range(30 * block + 15, 30 * block + 25), faults=2)
    run(range(30 * block + 25, 30 * block + 30), faults=4)


@pytest.mark.parametrize("block", range(4))
def test_a_run_that_begins_again_goes_on_where_its_ranks_stand(block):
    run(range(1000 + 10 * block, 1010 + 10 * block), faults=1, begins_again=True)


POSTS = ("planner", "constructor-0", "constructor-1", "host-0", "host-2")
"""host-2 stands by."""


def disturbed_run(seed: int, disturb, *, loads: bool = False) -> SimulatedEngine:
    """Four ranks take their steps in turn; `disturb` is called with the engine after some of them.

    With `loads`, all but one go back to a state that was saved, and the last one follows.
    """
    with SimulatedEngine(
        config("concat"),
        seed=seed,
        hosts=2,
        shadows=1,
        constructors=2,
        loaders=2,
        weather=Weather(lost=0.05),
        care=Care(kills=bool(seed % 2)),
    ) as engine:
        clients = [engine.client(rank) for rank in range(NUM_RANKS)]
        first = 5 if loads else 0
        if loads:
            take_all(clients, 5)
            state = clients[1].state_dict()
            take_all(clients, 3)
            for client in clients[:3]:
                client.load_state_dict(state)
        for step in range(first, STEPS):
            if step == first + seed % 3 + 1:
                disturb(engine)
            for client in clients if step % 2 else clients[::-1]:
                batch = next(client)
                assert (batch.step, digest(batch)) == (step, expected("concat")[step, client.rank])
    return engine


def take_all(clients, steps: int) -> None:
    for _ in range(steps):
        for client in clients:
            next(client)


@pytest.mark.parametrize("second", POSTS)
@pytest.mark.parametrize("first", POSTS)
def test_any_two_are_lost_at_once(first, second):
    """The same twice is one alone."""
    for seed, (kill_first, kill_second) in enumerate([(True, True), (True, False), (False, False)]):

        def disturb(engine, kills=(kill_first, kill_second)):
            for post, is_killed in zip((first, second), kills, strict=True):
                engine.kill(post) if is_killed else engine.freeze(post)

        disturbed_run(seed, disturb)


def test_everybody_but_the_hosts_is_lost_at_once():
    for seed in range(6):

        def disturb(engine):
            for post in ("planner", "constructor-0", "constructor-1"):
                engine.kill(post)

        disturbed_run(seed, disturb)


def test_a_generation_survives_whoever_opened_it():
    """What a load moved the run to is known when planner and constructors are gone; who did not load follows."""
    for seed in range(6):

        def disturb(engine, seed=seed):
            for post in ("planner", "constructor-0", "constructor-1")[: 1 + seed % 3]:
                engine.kill(post)

        engine = disturbed_run(seed, disturb, loads=True)
        assert engine.coordinator.generations.generation == 1


def test_a_host_that_was_only_slow_comes_back():
    engine = disturbed_run(1, lambda engine: engine.freeze("host-0", 4.0))
    assert set(engine.coordinator.placement.alive) | set(engine.coordinator.shadows) == {"host-0", "host-1", "host-2"}


def test_a_trainer_that_starts_again_loads_and_goes_on_while_processes_die():
    for seed in range(6):
        with SimulatedEngine(
            config("concat"), seed=seed, hosts=2, constructors=2, weather=Weather(), care=Care()
        ) as engine:
            clients = [engine.client(rank) for rank in range(NUM_RANKS)]
            take_all(clients, 6)
            state = clients[0].state_dict()
            engine.kill(POSTS[seed % 4])
            clients = [engine.client(rank) for rank in range(NUM_RANKS)]
            for client in clients:
                client.load_state_dict(state)
            engine.kill(POSTS[(seed + 1) % 4])
            for step in range(6, STEPS):
                for client in clients:
                    batch = next(client)
                    assert (batch.step, digest(batch)) == (step, expected("concat")[step, client.rank])
