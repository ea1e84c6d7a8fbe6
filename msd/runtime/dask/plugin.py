"""What a run adds to the scheduler: news of workers that come and go, and a veto on closing those with actors."""

from collections.abc import Iterable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

LOST_TOPIC = "msd-worker-lost"
CAME_TOPIC = "msd-worker-came"


class RunPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Installed once on each scheduler that hosts a run."""

    name = "msd"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Remember the scheduler."""
        self._scheduler = scheduler

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Tell supervisors that a worker is there."""
        state = scheduler.workers[worker]
        scheduler.log_event(CAME_TOPIC, {"worker": worker, "name": str(state.name), "host": str(state.host)})

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Tell everyone who listens that a worker is gone: within about 10 ms of a kill."""
        for client, connection in scheduler.client_comms.items():
            # Who listened in the lost worker: Dask would report as critical that it cannot be told.
            if connection.closed():
                scheduler.unsubscribe_topic(LOST_TOPIC, client)
        scheduler.log_event(LOST_TOPIC, {"worker": worker})

    def valid_workers_downscaling(self, scheduler: Any, workers: Iterable[Any]) -> list[Any]:
        """Return the workers that may be closed: those that hold no actor."""
        return [worker for worker in workers if not worker.actors]
