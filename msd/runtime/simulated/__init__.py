"""A whole cluster in one thread: simulated time, network and processes, the same in every run of a seed."""

from msd.runtime.simulated.engine import SimulatedEngine
from msd.runtime.simulated.network import Weather
from msd.runtime.simulated.supervisor import Care

__all__ = ["Care", "SimulatedEngine", "Weather"]
