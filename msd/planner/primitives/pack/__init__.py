"""Samples to sequences. Knows no mesh: what a step holds is the same for every layout."""

from msd.planner.primitives.pack.limits import NO_LIMITS, Limits
from msd.planner.primitives.pack.op import METHODS, Pack
from msd.planner.primitives.pack.packer import Packer, begin

__all__ = ["METHODS", "NO_LIMITS", "Limits", "Pack", "Packer", "begin"]
