"""What a step will take before a machine is rented: real plans under a stated model of a trainer.

No GPU, no cluster. Lengths and image sizes come from the sources, plans from the planner; only time is modelled.
"""

from msd.simulator.predict import simulate
from msd.simulator.report import Simulation
from msd.simulator.scaling import ScalingRun, SimulatedSource, simulate_scaling
from msd.simulator.trainer import Trainer

__all__ = ["ScalingRun", "SimulatedSource", "Simulation", "Trainer", "simulate", "simulate_scaling"]
