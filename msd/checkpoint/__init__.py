"""What must be remembered of a run: snapshots, the journal of edits, and who may write them."""

from msd.checkpoint.lease import Lease
from msd.checkpoint.snapshot import Entry, Snapshot
from msd.checkpoint.store import Store, open_store

__all__ = ["Entry", "Lease", "Snapshot", "Store", "open_store"]
