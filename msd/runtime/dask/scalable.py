"""Somebody's Dask cluster object, of which workers are started and ended: LocalCluster, jobqueue, Kubernetes."""

from typing import Any

from msd.errors import ConfigError


class ScalableCluster:
    """Starts and ends workers of a cluster that is not ours. Its methods may wait: on a thread that may."""

    def __init__(self, cluster: Any) -> None:
        """Take a cluster object.

        Args:
            cluster: Of a class of `distributed.deploy`, or one that offers the same `scheduler_address` and `scale`.

        Raises:
            ConfigError: If it is nothing of the kind, or belongs to an event loop that this thread may not wait for.
        """
        if not (
            isinstance(getattr(cluster, "scheduler_address", None), str) and callable(getattr(cluster, "scale", None))
        ):
            raise ConfigError(
                f"cluster must be a Dask cluster object such as LocalCluster(), got {type(cluster).__name__}; for the "
                "address of a scheduler use scheduler="
            )
        if getattr(cluster, "asynchronous", False):
            raise ConfigError(
                "cluster was made with asynchronous=True; make it without, or pass scheduler= its address"
            )
        self._cluster = cluster

    @property
    def address(self) -> str:
        """Of its scheduler."""
        address: str = self._cluster.scheduler_address
        return address

    @property
    def security(self) -> Any:
        """Certificates of its scheduler, None if it has none."""
        return getattr(self._cluster, "security", None)

    @property
    def can_end(self) -> bool:
        """Whether it can be told which worker is to end; else those that are not needed stay, idle."""
        return isinstance(getattr(self._cluster, "worker_spec", None), dict)

    def scale(self, count: int) -> None:
        """See to it that there are so many workers in all, those included that somebody else started."""
        planned = {str(name) for name in getattr(self._cluster, "plan", ())}
        there = {str(worker["name"]) for worker in self._cluster.scheduler_info["workers"].values()}
        wanted = count - len(there - planned)
        if wanted > len(planned):
            self._cluster.scale(wanted)

    def end(self, name: str) -> None:
        """End a worker for good, if this cluster can be told which."""
        if self.can_end:
            keys = [key for key in self._cluster.worker_spec if str(key) == name]
            if keys:
                self._cluster.sync(self._cluster.scale_down, keys)
