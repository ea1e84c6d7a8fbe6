"""Text, packed and balanced: what a run follows unless it says otherwise."""

from msd.planner.strategy import default_strategy as packed_lm

__all__ = ["packed_lm"]
