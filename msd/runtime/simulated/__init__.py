"""A whole cluster in one thread: simulated time, network and processes, the same in every run of a seed."""

from msd.runtime.simulated.engine import SimulatedEngine
from msd.runtime.simulated.network import Weather

__all__ = ["SimulatedEngine", "Weather"]
