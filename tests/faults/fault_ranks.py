"""Ranks of a run that is disturbed: threads of this process, or programs that a trainer starts again together.

As a program: python fault_ranks.py ADDRESS RANK RANKS STEPS PACE_S FOLDER
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msd
from msd.client import RankClient
from msd.testing.scenarios import digest

DEADLINE_S = 60.0
CHOSEN = "chosen.json"


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of one rank."""

    step: int
    digest: str | None
    """None where the data has ended."""
    wait_s: float
    """How long the loop waited for it."""
    at: float
    """When it came, on the machine's monotonic clock."""
    sample_ids: tuple[tuple[str, int, int], ...] = ()


def take(
    client: RankClient,
    steps: int,
    pace_s: float,
    on_taken: Callable[[Taken], None],
    meet: Callable[[int], None],
    *,
    is_over: threading.Event,
) -> None:
    """Take steps as a training loop does, `pace_s` of work a step, up to step `steps` or the end of the data.

    After each step the rank meets the others, as it does in the collectives of a trainer.
    """
    step = -1
    while step < steps - 1 and not is_over.is_set():
        asked_at = time.monotonic()
        batch = next(client, None)
        came_at = time.monotonic()
        if batch is None:
            on_taken(Taken(step + 1, None, came_at - asked_at, came_at))
            return
        step = batch.step
        ids = tuple(tuple(one) for one in batch.sample_ids)
        on_taken(Taken(step, digest(batch), came_at - asked_at, came_at, ids))
        is_over.wait(pace_s)
        meet(step)


class Lockstep:
    """Where the ranks of this process meet after each step."""

    def __init__(self, ranks: int) -> None:
        self._changed = threading.Condition()
        self._taken = dict.fromkeys(range(ranks), -1.0)

    def meet(self, rank: int, step: int) -> None:
        """Wait until every rank has taken a step, or left."""
        with self._changed:
            self._taken[rank] = step
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._taken[rank] > step or min(self._taken.values()) >= step)

    def leave(self, rank: int) -> None:
        """Be waited for no longer."""
        with self._changed:
            self._taken[rank] = float("inf")
            self._changed.notify_all()


class ThreadRank:
    """A rank in this process; it is not dealt with."""

    def __init__(self, address: str, rank: int, steps: int, pace_s: float, lockstep: Lockstep) -> None:
        self.rank, self._lockstep = rank, lockstep
        self.taken: list[Taken] = []
        self.error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address, steps, pace_s), name=f"rank-{rank}")
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def next_step(self) -> int:
        """The step after the latest."""
        if self.error is not None:
            raise self.error
        return self.taken[-1].step + 1 if self.taken else 0

    def read(self) -> list[Taken]:
        """Return what it has taken so far."""
        if self.error is not None:
            raise self.error
        return list(self.taken)

    def end(self) -> None:
        """Have it stop after the step that it waits for."""
        self._is_over.set()
        self._lockstep.leave(self.rank)
        self._thread.join()

    def _run(self, address: str, steps: int, pace_s: float) -> None:
        try:
            with msd.connect(address, rank=self.rank, deadline_s=DEADLINE_S) as client:
                take(client, steps, pace_s, self.taken.append, self._meet, is_over=self._is_over)
        except Exception as error:
            self.error = error
        finally:
            self._lockstep.leave(self.rank)

    def _meet(self, step: int) -> None:
        if not self._is_over.is_set():
            self._lockstep.meet(self.rank, step)


def read_taken(path: Path) -> list[Taken]:
    """Return what a program wrote; a last line that a kill cut off does not count."""
    lines = path.read_text().splitlines() if path.exists() else []
    taken = []
    for line in lines:
        with contextlib.suppress(ValueError):
            one = json.loads(line)
            taken.append(Taken(**one | {"sample_ids": tuple(tuple(each) for each in one["sample_ids"])}))
    return taken


def main() -> None:
    """Load the state that the trainer chose, if it chose one; keep the state after each step."""
    address, pace_s, folder = sys.argv[1], float(sys.argv[5]), Path(sys.argv[6])
    rank, ranks, steps = map(int, sys.argv[2:5])
    chosen, states = folder / CHOSEN, folder / f"states-{rank}"
    states.mkdir(exist_ok=True)
    with (
        msd.connect(address, rank=rank, deadline_s=DEADLINE_S) as client,
        (folder / f"rank-{rank}.jsonl").open("a") as out,
    ):
        if chosen.exists():
            out.write("\n")  # What a kill cut off ends here.
            client.load_state_dict(json.loads(chosen.read_text()))

        def keep(taken: Taken) -> None:
            out.write(json.dumps(asdict(taken)) + "\n")
            out.flush()
            write_whole(states / f"{taken.step:08d}.json", json.dumps(client.state_dict()))

        def meet(step: int) -> None:
            # Files of an earlier life may let it pass early, by the few steps between the chosen state and the kill.
            while not all((folder / f"states-{other}" / f"{step:08d}.json").exists() for other in range(ranks)):
                time.sleep(0.005)

        take(client, steps, pace_s, keep, meet, is_over=threading.Event())


def choose(folder: Path, ranks: int, *, before: int) -> None:
    """Choose the state that all ranks load when they start again: of the last step that each of them kept.

    That is a step earlier than `before`, the last one of the run, so that each of them has one to take.
    """
    kept = [{path.name for path in (folder / f"states-{rank}").glob("*.json")} for rank in range(ranks)]
    if common := {name for name in set.intersection(*kept) if name < f"{before:08d}.json"}:
        write_whole(folder / CHOSEN, (folder / "states-0" / max(common)).read_text())


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    os.replace(partial, path)


if __name__ == "__main__":
    main()
