"""`msd partition CONFIG`: how many loaders of what, with how many workers, where, for a rate and a budget."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config
from msd.errors import ConfigError

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.demand import HostBudget, SourceDemand
    from msd.core.order import SourceOrder
    from msd.cost.profile import Profile
    from msd.scaling.partition import Shortfall, Sizing

BRIEFLY_S = 10.0


def partition(
    config_path: ConfigPath,
    overrides: Overrides = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Samples/s over all sources; left out, the highest that fits.", show_default=False),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(help="Cores of all loader hosts together; left out, those of this machine.", show_default=False),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of all loader hosts together, such as 4GiB; left out, half of this machine's.",
            show_default=False,
        ),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, help="Loader hosts; left out, runtime.workers.", show_default=False)
    ] = None,
    headroom: Annotated[float, typer.Option(min=1.0, help="So many times what is needed is provided.")] = 1.25,
    profile: Annotated[
        Path | None,
        typer.Option(help="A profile; left out, the one that is kept, else one made briefly now.", show_default=False),
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> int:
    """Size loaders for a rate: sources by their cost and share, within hard budgets, each line explained."""
    from msd.build import build_orders, index_all
    from msd.profiling.demands import demands_of
    from msd.scaling.baselines import one_each, uniform
    from msd.scaling.partition import partition_sources, sustained

    config = read_config(config_path, overrides, sets)
    if cpus is not None and not cpus > 0:
        raise ConfigError(f"--cpus must be above 0 cores, got {cpus:g}")
    orders = build_orders(config, index_all(config))
    found = _profile(config, orders, profile)
    demands = demands_of(config, orders, found)
    budgets = _budgets(config, found, cpus=cpus, memory=memory, hosts=hosts)
    sizing = partition_sources(demands, budgets, rate=rate, headroom=headroom)
    workers = sum(seating.workers or 0 for seating in sizing.allocation.values())
    allocations = {
        "this": sizing.allocation,
        "one loader a source": one_each(demands, budgets),
        "as many workers for each": uniform(demands, budgets, workers),
    }
    others = {name: sustained(allocation, demands, budgets) for name, allocation in allocations.items()}
    if as_json:
        output.print_json(_as_json(sizing, demands, others))
    else:
        _print(sizing, demands, others)
    return 0 if sizing.is_met else 1


def _profile(config: "Config", orders: "dict[str, SourceOrder]", path: Path | None) -> "Profile":
    from msd.build import build_chains
    from msd.cli.profile import profiled
    from msd.profiling import find, read
    from msd.profiling.store import fingerprints, machine, versions

    prints = fingerprints(config, orders, build_chains(config))
    if path is not None:
        given = read(path)
        if others := given.differences(prints, {}, {}):
            raise ConfigError(f"the profile {str(path)!r} does not fit this configuration: {'; '.join(others)}")
        for one in given.differences({}, machine(), versions()):
            output.note(f"the profile {path}: {one}; what it says may be off")
        return given
    kept, against = find(prints)
    if kept is not None:
        return kept
    why = f"the one that is kept does not fit: {'; '.join(against)}" if against else "none is kept"
    output.note(f"profiling for {BRIEFLY_S:g} s, since {why}")
    made, problems, _ = profiled(config, seconds=BRIEFLY_S)
    refused = [problem for name, problem in problems.items() if config.weights[name] > 0]
    if refused:
        raise ConfigError(refused[0])
    return made


def _budgets(
    config: "Config", profile: "Profile", *, cpus: float | None, memory: str | None, hosts: int | None
) -> "list[HostBudget]":
    from msd.core.config import parse_bytes
    from msd.core.demand import HostBudget

    count = hosts or config.runtime.workers
    cores = float(len(os.sched_getaffinity(0))) if cpus is None else cpus
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    nbytes = half if memory is None else parse_bytes(memory, name="--memory")
    each = nbytes // count - profile.process_bytes
    if each <= 0:
        fewer = max(1, nbytes // max(1, profile.process_bytes) - 1)
        raise ConfigError(
            f"--memory {output.size(nbytes)} is not enough for {count} loader hosts, each of which takes "
            f"{output.size(profile.process_bytes)} before it holds any loader; give more, or --hosts {fewer}"
        )
    return [HostBudget(host=f"host-{number}", cpus=cores / count, memory_bytes=each) for number in range(count)]


def _why(sizing: "Sizing", demand: "SourceDemand") -> str:
    need, seating = sizing.needs[demand.source], sizing.allocation[demand.source]
    hosts = ", ".join(f"{seat.host} ({seat.workers})" for seat in seating.seats)
    return (
        f"{demand.source}: {need.samples_per_s:,.1f} samples/s x {demand.rows_per_sample:.3g} rows x "
        f"{1e3 * demand.cost.prepare_s:,.3g} ms = {need.workers / sizing.headroom:,.2f} workers busy, x "
        f"{sizing.headroom:g} head-room -> {seating.workers} on {hosts}"
    )


def _said(short: "Shortfall") -> str:
    if "memory" in short.what:
        return f"{short.what}: {output.size(int(short.needed))} needed, {output.size(int(short.available))} there"
    return f"{short.what}: {short.needed:,.2f} needed, {short.available:,.2f} there"


def _memory(sizing: "Sizing", source: str) -> int:
    return sum(part.memory_bytes for part in sizing.parts if part.source == source)


def _print(sizing: "Sizing", demands: "list[SourceDemand]", others: dict[str, float]) -> None:
    rows = [
        [
            demand.source,
            demand.runs_in,
            f"{demand.share:.1%}",
            f"{1e3 * demand.cost.prepare_s:.3g}",
            f"{sizing.needs[demand.source].workers:.2f}",
            len(sizing.allocation[demand.source].seats),
            sizing.allocation[demand.source].workers,
            f"{sizing.needs[demand.source].cpus:.2f}",
            f"{_memory(sizing, demand.source) / 2**20:.0f}",
        ]
        for demand in demands
    ]
    title = f"{sizing.rate:,.1f} samples/s, head-room {sizing.headroom:g}"
    columns = ["source", "runs in", "share", "ms a row", "need", "loaders", "workers", "cores", "MiB"]
    output.print_table(title, columns, rows, text_columns=2)
    used = [
        [
            use.budget.host,
            use.workers,
            f"{use.cpus:.2f} of {use.budget.cpus:.2f}",
            f"{use.memory_bytes / 2**20:,.0f} of {use.budget.memory_bytes / 2**20:,.0f}",
        ]
        for use in sizing.hosts
    ]
    output.print_table("hosts", ["host", "workers busy", "cores", "MiB of loaders"], used)
    for demand in demands:
        output.note(_why(sizing, demand))
    output.note("sustained: " + "; ".join(f"{name} {rate:,.1f} samples/s" for name, rate in others.items()))
    if not sizing.is_met:
        output.note(
            f"{sizing.asked_rate:,.1f} samples/s cannot be sustained: {'; '.join(map(_said, sizing.shortfalls))}. "
            f"The nearest that can is shown: {sizing.rate:,.1f}"
        )


def _as_json(sizing: "Sizing", demands: "list[SourceDemand]", others: dict[str, float]) -> dict[str, Any]:
    return {
        "rate": sizing.rate,
        "asked_rate": sizing.asked_rate,
        "is_met": sizing.is_met,
        "headroom": sizing.headroom,
        "shortfalls": [
            {"what": one.what, "needed": one.needed, "available": one.available} for one in sizing.shortfalls
        ],
        "sources": [
            {
                "source": demand.source,
                "share": demand.share,
                "samples_per_s": sizing.needs[demand.source].samples_per_s,
                "prepare_s": demand.cost.prepare_s,
                "need_workers": sizing.needs[demand.source].workers,
                "cores": sizing.needs[demand.source].cpus,
                "runs_in": demand.runs_in,
                "loaders": len(sizing.allocation[demand.source].seats),
                "workers": sizing.allocation[demand.source].workers,
                "hosts": {seat.host: seat.workers for seat in sizing.allocation[demand.source].seats},
                "memory_bytes": _memory(sizing, demand.source),
                "why": _why(sizing, demand),
            }
            for demand in demands
        ],
        "hosts": [
            {
                "host": use.budget.host,
                "workers": use.workers,
                "cores": use.cpus,
                "cpus": use.budget.cpus,
                "memory_bytes": use.memory_bytes,
                "memory_budget_bytes": use.budget.memory_bytes,
            }
            for use in sizing.hosts
        ],
        "sustained": others,
    }
