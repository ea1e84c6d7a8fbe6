"""What a worker of an embedded cluster does first: import what actors need, and see to what a dead engine left."""

import atexit
import importlib
import os
from pathlib import Path
from typing import Any

from tornado.ioloop import PeriodicCallback

from msd.runtime.dask.leftovers import remove

FOLDER_VARIABLE = "MSD_CLUSTER_FOLDER"
"""Folder of the cluster's logs and scratch files, and the process that removes it, as `PID:PATH`."""

MOST_LOG_BYTES = 16 << 20
CHECK_LOG_MS = 1000
STDOUT = 1


def dask_setup(worker: Any) -> None:
    """Called by Dask when the worker starts."""
    # Workers start side by side: importing now costs no time that an actor would wait for.
    for name in ("hosts", "constructor", "planner"):
        importlib.import_module(f"msd.runtime.dask.{name}")
    owner, _, folder = os.environ.get(FOLDER_VARIABLE, "").partition(":")
    if folder:
        atexit.register(_remove_if_orphaned, int(owner), folder)
        PeriodicCallback(_limit_log, CHECK_LOG_MS).start()


def _limit_log() -> None:
    """Begin the log anew when it has grown: what a transform prints for each row would fill the disk in the end."""
    if os.fstat(STDOUT).st_size > MOST_LOG_BYTES:
        os.ftruncate(STDOUT, 0)


def _remove_if_orphaned(owner: int, folder: str) -> None:
    """Remove the folder of an engine that was killed, and its workers that are frozen: nobody else would."""
    if os.getppid() != owner:
        remove(Path(folder))
