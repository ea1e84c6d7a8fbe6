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
