"""Where a run keeps its position, for every engine: whose the store is, where to resume, what is written when.

The engine's process holds the store (`StoreHold`) and asks where to go on (`resume_point`). Whoever hosts the planner
writes (`CheckpointWriter`): a snapshot when the watermark has moved far enough, off the step's path, and each edit
before it takes effect.
"""

from msd.runtime.checkpointing.hold import StoreHold
from msd.runtime.checkpointing.resume import ResumePoint, journalled, resume_point
from msd.runtime.checkpointing.writer import CheckpointWriter

__all__ = ["CheckpointWriter", "ResumePoint", "StoreHold", "journalled", "resume_point"]
