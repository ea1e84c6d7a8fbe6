"""What goes wrong, and when: schedules of faults drawn from a seed. Values only; `fault_run.py` performs them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["kill", "freeze", "pause", "term"]
"""kill: SIGKILL. freeze: SIGSTOP for good. pause: SIGSTOP, and SIGCONT some seconds later. term: SIGTERM, so that it
leaves in good order."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One process is dealt with when every rank has taken a step."""

    at_step: int
    target: str
    """Name of a Dask worker of the run, `serve`, `scheduler` or `rank-N`."""
    how: How
    back_after_s: float = 0.0
    """Of a pause."""

    def __str__(self) -> str:
        pause = f" {self.back_after_s:g} s" if self.how == "pause" else ""
        return f"{self.how} {self.target}{pause} at step {self.at_step}"


@dataclass(frozen=True, slots=True)
class Cast:
    """Who may be dealt with, and how."""

    workers: tuple[str, ...]
    others: tuple[str, ...] = ("serve",)
    """Programs outside the run's own cluster: nobody would end them if they stayed frozen."""
    pauses_s: tuple[float, ...] = (1.0, 4.0)
    """Shorter and longer than `runtime.silence_s`."""

    def hows(self, target: str) -> tuple[How, ...]:
        """Return what a target may suffer."""
        if target.startswith("rank"):
            return ("kill", "pause")
        return ("kill", "pause") if target in self.others else ("kill", "freeze", "pause", "term")


def drawn(seed: int, cast: Cast, *, first: int, last: int, apart: int, pairs: float = 0.3) -> tuple[Fault, ...]:
    """Return faults at random steps from `first` to `last`, singly and in pairs.

    Args:
        seed: The same schedule comes from the same seed.
        cast: Who may be dealt with.
        first: Step before which nothing happens.
        last: Step after which nothing happens.
        apart: Mean number of steps from one to the next.
        pairs: Share of those that come with a second one at once.
    """
    draw = random.Random(seed)
    targets = (*cast.workers, *cast.others)
    faults: list[Fault] = []
    step = first + draw.randrange(apart)
    while step <= last:
        struck = draw.sample(targets, 2 if draw.random() < pairs and len(targets) > 1 else 1)
        faults += [_one(draw, cast, step, target) for target in struck]
        step += draw.randrange(max(1, apart // 2), apart + apart // 2 + 1)
    return tuple(faults)


def in_turn(cast: Cast, *, first: int, apart: int, targets: Sequence[str] | None = None) -> tuple[Fault, ...]:
    """Return every way of every target, one after another."""
    each = [(target, how) for target in targets or (*cast.workers, *cast.others) for how in cast.hows(target)]
    return tuple(
        Fault(first + number * apart, target, how, cast.pauses_s[-1] if how == "pause" else 0.0)
        for number, (target, how) in enumerate(each)
    )


def _one(draw: random.Random, cast: Cast, step: int, target: str) -> Fault:
    how = draw.choice(cast.hows(target))
    return Fault(step, target, how, draw.choice(cast.pauses_s) if how == "pause" else 0.0)
