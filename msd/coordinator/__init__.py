"""When, and who is alive. Pure: no I/O, no clock; runtimes carry its decisions out."""

from msd.coordinator.generations import Generations, Position

__all__ = ["Generations", "Position"]
