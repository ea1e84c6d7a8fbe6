"""Numbers of runs for Prometheus, on the page of the scheduler that hosts them. Names are part of the contract."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from msd.runtime.dask.watching.view import RunView, memory_of

Kind: TypeAlias = type[GaugeMetricFamily] | type[CounterMetricFamily]
Read: TypeAlias = Callable[[Any], float | int | None]

OF_RUN: tuple[tuple[str, str, Kind, Read], ...] = (
    ("msd_next_step", "Step that is planned next.", GaugeMetricFamily, lambda stats: stats["next_step"]),
    ("msd_generation", "How often the run was moved by loads.", GaugeMetricFamily, lambda stats: stats["generation"]),
    ("msd_planner_term", "How many planners the run has had.", GaugeMetricFamily, lambda stats: stats["term"]),
    ("msd_rank_wait_seconds", "Seconds that ranks have waited, on average.", CounterMetricFamily,
     lambda stats: stats["waited_s"]),
    ("msd_plan_cpu_seconds", "CPU that planning has taken.", CounterMetricFamily, lambda stats: stats["plan_s"]),
    ("msd_fill_ratio", "Tokens over places, mean of all steps.", GaugeMetricFamily, lambda stats: stats["fill"]),
    ("msd_imbalance_ratio", "Cost of the dearest rank over the mean, less 1, mean of all steps.", GaugeMetricFamily,
     lambda stats: stats["imbalance"]),
    ("msd_imbalance_floor_ratio", "The same, at best.", GaugeMetricFamily, lambda stats: stats["imbalance_floor"]),
    ("msd_connected_ranks", "Ranks that are connected.", GaugeMetricFamily,
     lambda stats: sum(len(one["connected"]) for one in stats["constructors"])),
    ("msd_recoveries", "Losses that were made good.", CounterMetricFamily,
     lambda stats: sum(one["took_s"] is not None for one in stats["recoveries"])),
    ("msd_open_losses", "Losses that were not made good yet.", GaugeMetricFamily,
     lambda stats: sum(one["took_s"] is None for one in stats["recoveries"])),
    ("msd_wanted_hosts", "Loader hosts that are wanted by scaling.", GaugeMetricFamily,
     lambda stats: (stats["scaling"] or {}).get("hosts_wanted")),
)  # fmt: skip
"""Name, meaning, kind and value; counters get `_total` behind their names."""

OF_SOURCE: tuple[tuple[str, str, Kind, Read], ...] = (
    ("msd_source_target_share", "Share at the next step, of what the mixture counts.", GaugeMetricFamily,
     lambda one: one["target_share"]),
    ("msd_source_tokens", "Tokens drawn.", CounterMetricFamily, lambda one: one["tokens"]),
    ("msd_source_samples", "Samples drawn.", CounterMetricFamily, lambda one: one["samples"]),
    ("msd_source_starved_seconds", "Seconds that planning has waited for its rows.", CounterMetricFamily,
     lambda one: one["starved_s"]),
    ("msd_source_ready_rows", "Rows that are known beyond what is planned.", GaugeMetricFamily,
     lambda one: one["ready_rows"]),
    ("msd_source_wanted_rows", "Rows that it pays to have ready.", GaugeMetricFamily, lambda one: one["wanted_rows"]),
    ("msd_source_examined_rows", "Rows that were transformed.", CounterMetricFamily,
     lambda one: one.get("rows_examined")),
    ("msd_source_failed_rows", "Rows that failed.", CounterMetricFamily, lambda one: one.get("failed_rows")),
    ("msd_source_killed_rows", "Rows that ended or hung their process twice.", CounterMetricFamily,
     lambda one: one.get("killed")),
    ("msd_source_suspended", "1 while it is not drawn from.", GaugeMetricFamily, lambda one: int(one["is_suspended"])),
)  # fmt: skip

LIMITS = ("msd_source_limits_step", "1 for the source that limits the steps of the last seconds.")
MEMORY = ("msd_process_memory_bytes", "Proportional share of memory of a process of the run.")


class Collector:
    """Gives the newest figures of all runs that a scheduler hosts."""

    def __init__(self, views: Callable[[], Iterable[RunView]]) -> None:
        """Ask `views` whenever somebody looks."""
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also those of which there is no value yet."""
        views = [view for view in self._views() if view.latest]
        for name, meaning, kind, read in OF_RUN:
            family: Any = kind(name, meaning, labels=["run"])
            for view in views:
                _add(family, [view.name], read(view.latest))
            yield family
        for name, meaning, kind, read in OF_SOURCE:
            family = kind(name, meaning, labels=["run", "source"])
            for view in views:
                for source, one in view.latest["sources"].items():
                    _add(family, [view.name, source], read(one))
            yield family
        limits = GaugeMetricFamily(*LIMITS, labels=["run", "source"])
        memory = GaugeMetricFamily(*MEMORY, labels=["run", "process", "role"])
        for view in views:
            limit = view.latest.get("limited_by")
            if limit is not None:
                limits.add_metric([view.name, limit["source"]], 1)
            for process, role, nbytes in memory_of(view.latest):
                memory.add_metric([view.name, process, role], nbytes)
        yield limits
        yield memory


def _add(family: Any, labels: list[str], value: float | int | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
