"""Which processes there are: what everybody who sends a message looks up first."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msd.runtime.simulated.constructor import SimulatedConstructor
    from msd.runtime.simulated.host import SimulatedHost
    from msd.runtime.simulated.planner import SimulatedPlanner


@dataclass(slots=True)
class Cluster:
    """The processes that hold each post now. An older one of a post may still run: it is only not found any more."""

    hosts: dict[str, "SimulatedHost"] = field(default_factory=dict)
    constructors: dict[str, "SimulatedConstructor"] = field(default_factory=dict)
    planner: "SimulatedPlanner | None" = None
    constructor_of: dict[int, str] = field(default_factory=dict)
    """By rank."""

    def where(self, rank: int) -> "SimulatedConstructor | None":
        """Return the constructor that serves a rank, or None while it is being replaced."""
        return self.constructors.get(self.constructor_of[rank])
