"""Assemble: samples and a plan become the batches of ranks."""

from msd.constructor.constructor import AssembledBucket, DataConstructor
from msd.constructor.context_parallel import slice_row

__all__ = ["AssembledBucket", "DataConstructor", "slice_row"]
