"""Ranks that are driven by hand, for tests of the coordinator."""

from msd.coordinator import RankStanding
from msd.coordinator.commands import Assign, Command
from msd.coordinator.events import StepAsked
from msd.core.mesh import Mesh
from msd.testing.runs import MadeUpRun
from msd.testing.tables import feed_of, row, steps_of

SOURCES = {"web": [row(20), row(31), row(5)] * 30, "books": [row(50)] * 40}


def make(constructors=None, **changes) -> MadeUpRun:
    constructors = {"c0": (0,), "c1": (1,)} if constructors is None else constructors
    return MadeUpRun(SOURCES, constructors, **{"mesh": Mesh.of(dp=2), **changes})


def plans_of(run: MadeUpRun, count: int) -> list:
    """Return the first plans of the run that nothing disturbs."""
    steps = steps_of(run.new_planner(None), feed_of(SOURCES, run.settings))
    return [next(steps) for _ in range(count)]


def of_kind(kind, commands) -> list:
    return [command for command in commands if isinstance(command, kind)]


class Ranks:
    """Connected ranks that ask in turn; everything they cause is carried out."""

    def __init__(self, run: MadeUpRun, ranks=(0, 1)) -> None:
        self.run = run
        self.met = run.settle(run.coordinator.begin())
        self.sessions = {}
        for rank in ranks:
            self.connect(rank)

    def connect(self, rank: int, at: RankStanding | None = None) -> list[Command]:
        self.sessions[rank], commands = self.run.coordinator.connect(rank, at)
        return self.note(commands)

    def asks(self, rank: int, step: int) -> list[Command]:
        generation = self.run.coordinator.generations.generation
        return self.note(self.run.coordinator.handle(StepAsked(rank, self.sessions[rank], generation, step)))

    def ask_all(self, steps) -> list[Command]:
        return [command for step in steps for rank in self.sessions for command in self.asks(rank, step)]

    def leaves(self, rank: int) -> list[Command]:
        return self.note(self.run.coordinator.disconnect(rank, self.sessions.pop(rank)))

    def load(self, rank: int, state, **changes) -> list[Command]:
        return self.note(self.run.coordinator.load(rank, self.sessions[rank], state, **changes))

    def happens(self, *events) -> list[Command]:
        return self.note(self.run.coordinator.handle_all(events))

    def note(self, commands) -> list[Command]:
        met = self.run.settle(commands)
        self.met += met
        return met

    def assigned(self, constructor: str) -> list[int]:
        return [c.plan.step for c in self.met if isinstance(c, Assign) and c.constructor == constructor]
