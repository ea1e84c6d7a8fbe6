"""Measures what sources cost here: samples their rows, times what is done to them, fits models, keeps the result."""

from msd.profiling.profile import SourceDone, TimedRows, profile, timed_rows
from msd.profiling.store import find, keep, profile_path, read

__all__ = ["SourceDone", "TimedRows", "find", "keep", "profile", "profile_path", "read", "timed_rows"]
