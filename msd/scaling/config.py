"""What a user may set about sizes: before a run, and while it runs."""

import msgspec

from msd.core.checks import check_range
from msd.core.config import ConfigStruct, parse_bytes
from msd.errors import ConfigError


class ScalingConfig(ConfigStruct, frozen=True, kw_only=True):
    """How the run is sized to its mixture. What is delivered never depends on it."""

    rate: float | None = None
    """Samples/s over all sources that the run has to sustain. Null takes what ranks turn out to ask for."""
    headroom: float = 1.25
    """So many times what is needed is provided."""
    cpus: float | None = None
    """Cores that one loader host may use, a hard bound. Null is its share of its machine."""
    memory: int | str | None = None
    """Memory that one loader host may hold, a hard bound: 8GiB. Null is its share of what its machine has."""
    min_hosts: int | None = None
    """Loader hosts that stay; null is `runtime.workers`."""
    max_hosts: int | None = None
    """Loader hosts at most; null is `runtime.workers`: then only workers are moved between sources. More are started
    where the run can: on a cluster of its own, and on a Dask cluster that is given to `msd.start(cluster=)`."""
    interval_s: float = 2.0
    """Between two looks. Shorter reacts sooner and to more noise."""
    up_after: int = 2
    """Looks in a row that must ask for more before more is given; what the schedule announces is given at once."""
    down_after: int = 10
    """Looks in a row that must ask for less: giving back costs nothing but a later change up."""
    down_below: float = 0.7
    """Less is given only if the need falls below this share of what there is: the gap to 1 keeps noise from turning a
    decision around."""
    cool_down_s: float = 20.0
    """After a change of a source nothing is taken from it for so long."""
    lookahead_s: float = 30.0
    """So far ahead the schedule of the mixture, and the rows that come next, are looked at."""

    def __post_init__(self) -> None:
        if self.memory is not None:
            msgspec.structs.force_setattr(self, "memory", parse_bytes(self.memory, name="scaling.memory"))
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                check_range(f"scaling.{name}", value, low, high)
        if self.min_hosts is not None and self.max_hosts is not None and self.min_hosts > self.max_hosts:
            raise ConfigError(
                f"scaling.min_hosts {self.min_hosts} lies above scaling.max_hosts {self.max_hosts}; swap them"
            )

    def within(self, workers: int) -> "ScalingConfig":
        """Return the same with numbers of hosts where none are given, for a run that begins with so many."""
        return msgspec.structs.replace(
            self,
            min_hosts=min(workers, self.max_hosts or workers) if self.min_hosts is None else self.min_hosts,
            max_hosts=max(workers, self.min_hosts or workers) if self.max_hosts is None else self.max_hosts,
        )


_RANGES: dict[str, tuple[float, float]] = {
    "rate": (1e-6, 1e12),
    "headroom": (1.0, 100.0),
    "cpus": (0.01, 1 << 16),
    "min_hosts": (1, 1 << 16),
    "max_hosts": (1, 1 << 16),
    "interval_s": (0.05, 3600.0),
    "up_after": (1, 1 << 16),
    "down_after": (1, 1 << 16),
    "down_below": (0.05, 0.95),
    "cool_down_s": (0.0, 86_400.0),
    "lookahead_s": (0.0, 86_400.0),
}
"""Smallest and largest values."""
