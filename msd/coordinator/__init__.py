"""When, and who is alive: events in, commands out. Pure: no I/O, no clock; runtimes carry the decisions out."""

from msd.coordinator.coordinator import Coordinator
from msd.coordinator.generations import Generations, Position
from msd.coordinator.placement import Placement, deal
from msd.coordinator.stalls import StallTerms
from msd.coordinator.standing import RankStanding, Standing, merged

__all__ = [
    "Coordinator",
    "Generations",
    "Placement",
    "Position",
    "RankStanding",
    "StallTerms",
    "Standing",
    "deal",
    "merged",
]
