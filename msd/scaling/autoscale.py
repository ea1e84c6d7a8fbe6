"""Mixture-driven scaling: a reading in, a decision out.

Need of a source = rate x share x rows a sample x seconds that a row of those that come next is predicted to take:
workers busy at once. More is given when that shows for some looks in a row, or at once when the schedule or the rows
to come announce it; less only when the need would have to grow much before it were missed again. What is delivered
never depends on any of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from msd.core.allocation import Seating
from msd.core.demand import HostBudget, SourceDemand
from msd.scaling.config import ScalingConfig
from msd.scaling.need import EPSILON, needs_of
from msd.scaling.place import place
from msd.scaling.reading import (
    Decision,
    HostReading,
    Reading,
    Reason,
    ScalerMemory,
    SourceMemory,
    SourceReading,
)
from msd.scaling.reseat import Load, Reseated, Reseating

SMOOTHING = 0.3
"""Weight of the newest look in the moving average of a need."""
FULL = 0.9
"""Occupancy from which on a source keeps up, whatever a model says of it."""
ANNOUNCED = 1.05
"""Times the present need from which on what lies ahead counts as a change that is announced."""
SEAT_S = 0.5
"""What opening another loader costs: files, and the first block."""
HOST_S = 5.0
"""What starting another host costs: a process, imports, its loaders."""


def decide(memory: ScalerMemory, reading: Reading, settings: ScalingConfig) -> tuple[ScalerMemory, Decision]:
    """Return what to remember until the next look, and what to do now."""
    rate = settings.rate or reading.rate
    wishes = {
        source: _wish(source, one, memory.sources.get(source), reading.now_s, rate, settings)
        for source, one in reading.sources.items()
    }
    going = _going(memory, reading, rate, settings)
    staying = {name: one.budget for name, one in reading.hosts.items() if one.state == "up" and name not in going.hosts}
    if not staying:
        # Nobody is there to be given anything: losses are for others to make good.
        return replace(memory, looks_down=0), Decision()
    reseated = _reseated(reading, wishes, staying)
    adding = _adding(reading, wishes, reseated, settings)
    # A source of which nothing came true has no reason told either.
    reasons = [wish.reason for source, wish in wishes.items() if wish.reason and source in reseated.seatings]
    remembered = {
        source: _after(wish.memory, now_s=reading.now_s, seating=reseated.seatings.get(source))
        for source, wish in wishes.items()
    }
    has_changed = bool(adding.count or going.hosts)
    return (
        ScalerMemory(
            sources=remembered,
            looks_down=going.looks_down,
            hosts_changed_at_s=reading.now_s if has_changed else memory.hosts_changed_at_s,
        ),
        Decision(
            seatings=reseated.seatings,
            add_hosts=adding.count,
            drain=going.hosts,
            reasons=(*going.reasons, *reasons, *adding.reasons),
        ),
    )


# How many workers a source is to have.


@dataclass(frozen=True, slots=True)
class _Wish:
    workers: int
    """That a source is to have: mostly those that it has."""
    peak: SourceDemand
    """The larger of what it is now and what lies ahead."""
    need: float
    """Workers that it keeps busy then, head-room included."""
    cpus: float
    memory: SourceMemory
    reason: Reason | None = None


def _wish(
    source: str, reading: SourceReading, known: SourceMemory | None, now_s: float, rate: float, settings: ScalingConfig
) -> _Wish:
    now, ahead = _busy(reading.now, rate), _busy(reading.ahead, rate)
    smooth = now if known is None else SMOOTHING * now + (1 - SMOOTHING) * known.need
    memory = replace(known or SourceMemory(need=smooth), need=smooth)
    unused = 1 + max(seat.partition for seat in reading.seating.seats)
    memory = replace(memory, next_partition=max(memory.next_partition, unused))
    is_announced = ahead > ANNOUNCED * max(now, smooth)
    peak = reading.ahead if is_announced else reading.now
    (full,) = needs_of([peak], rate=rate, headroom=settings.headroom)
    needed = settings.headroom * (ahead if is_announced else smooth)
    wanted, there = _slots(needed), reading.seating.workers
    # So few that the need would have to grow by a good part before it were missed again.
    fewer = _slots(settings.headroom * max(ahead, smooth) / settings.down_below)
    told = (
        f"{rate * peak.share:,.1f} samples/s x {peak.rows_per_sample:.3g} rows x {1000 * peak.cost.prepare_s:,.3g} ms "
        f"x {settings.headroom:g} = {needed:,.2f} workers busy, occupancy {reading.occupancy:.0%}"
    )

    def chosen(workers: int, looks_up: int, looks_down: int, why: str = "") -> _Wish:
        reason = Reason(about=source, text=f"{there or 'any'} -> {workers} workers, {why}: {told}") if why else None
        remembered = replace(memory, looks_up=looks_up, looks_down=looks_down)
        return _Wish(workers, peak, needed, full.cpus, remembered, reason)

    if there is None:
        return chosen(wanted, 0, 0, "its own from now on")
    if wanted > there:
        looks = memory.looks_up + 1
        keeps_up = reading.occupancy >= FULL and reading.starved_s == 0.0
        # What is missing of the need is waited for, as far ahead as is looked.
        saved_s = (1.0 - there / needed) * max(settings.lookahead_s, settings.interval_s)
        is_due = is_announced or (looks >= settings.up_after and not keeps_up)
        if is_due and saved_s >= SEAT_S:
            return chosen(wanted, looks, 0, "announced" if is_announced else f"for {looks} looks")
        return chosen(there, looks, 0)
    if fewer < there:
        looks = memory.looks_down + 1
        is_cool = now_s - memory.changed_at_s >= settings.cool_down_s
        if looks >= settings.down_after and is_cool and reading.starved_s == 0.0:
            return chosen(fewer, 0, looks, f"for {looks} looks")
        return chosen(there, 0, looks)
    return chosen(there, 0, 0)


def _busy(demand: SourceDemand, rate: float) -> float:
    (need,) = needs_of([demand], rate=rate, headroom=1.0)
    return need.workers


def _slots(workers: float) -> int:
    return max(1, math.ceil(workers - EPSILON))


def _after(memory: SourceMemory, *, now_s: float, seating: Seating | None) -> SourceMemory:
    if seating is None:
        return memory
    unused = max(memory.next_partition, 1 + max(seat.partition for seat in seating.seats))
    return replace(memory, changed_at_s=now_s, looks_up=0, looks_down=0, next_partition=unused)


# Where.


def _reseated(reading: Reading, wishes: Mapping[str, _Wish], hosts: Mapping[str, HostBudget]) -> Reseated:
    loads = {
        source: Load(
            worker_cpus=wish.cpus / max(wish.workers, _slots(wish.need)),
            loader_bytes=wish.peak.loader_bytes,
            worker_bytes=wish.peak.worker_bytes,
            most_loaders=wish.peak.most_loaders,
        )
        for source, wish in wishes.items()
    }
    seatings = {source: one.seating for source, one in reading.sources.items()}
    reseating = Reseating(
        seatings, loads, hosts, {source: wish.memory.next_partition for source, wish in wishes.items()}
    )
    for source in seatings:
        reseating.move_off(source)
    # What is given back makes room for what is given.
    for source in sorted(seatings, key=lambda source: wishes[source].workers - (seatings[source].workers or 0)):
        reseating.set_workers(source, wishes[source].workers)
    return reseating.result()


# How many hosts.


@dataclass(frozen=True, slots=True)
class _Going:
    hosts: tuple[str, ...] = ()
    looks_down: int = 0
    reasons: tuple[Reason, ...] = ()


def _going(memory: ScalerMemory, reading: Reading, rate: float, settings: ScalingConfig) -> _Going:
    """Return hosts to do without: one above its memory at once, one that is not needed after some looks."""
    up = {name: one for name, one in reading.hosts.items() if one.state == "up"}
    over = tuple(name for name, one in up.items() if one.memory_bytes > one.budget.memory_bytes)
    if over and len(up) > len(over):
        reasons = tuple(
            Reason(
                about=name,
                text=f"drained: it holds {up[name].memory_bytes / 2**20:,.0f} MiB, its bound is "
                f"{up[name].budget.memory_bytes / 2**20:,.0f}",
            )
            for name in over
        )
        return _Going(over, 0, reasons)
    num_fewest = settings.min_hosts or len(up)
    spare = _spare(reading, up, rate, settings) if len(up) > num_fewest else None
    if spare is None:
        return _Going()
    looks = memory.looks_down + 1
    if looks < settings.down_after or reading.now_s - memory.hosts_changed_at_s < settings.cool_down_s:
        return _Going((), looks)
    text = f"drained: for {looks} looks the others had room for everything"
    return _Going((spare,), 0, (Reason(about=spare, text=text),))


def _spare(reading: Reading, up: Mapping[str, HostReading], rate: float, settings: ScalingConfig) -> str | None:
    """Return a host without which everything fits with a margin: the emptiest, far ones before training hosts."""
    held = dict.fromkeys(up, 0)
    for one in reading.sources.values():
        for seat in one.seating.seats:
            if seat.host in held:
                held[seat.host] += seat.workers or 1
    spare = min(up, key=lambda name: (up[name].budget.is_training, held[name], name))
    peaks = [max(one.now, one.ahead, key=lambda demand: _busy(demand, rate)) for one in reading.sources.values()]
    needs = needs_of(peaks, rate=rate, headroom=settings.headroom / settings.down_below)
    return None if place(needs, [one.budget for name, one in up.items() if name != spare]).unmet else spare


@dataclass(frozen=True, slots=True)
class _Adding:
    count: int = 0
    reasons: tuple[Reason, ...] = ()


def _adding(reading: Reading, wishes: Mapping[str, _Wish], reseated: Reseated, settings: ScalingConfig) -> _Adding:
    """Return how many hosts to start for workers that found no room."""
    coming = sum(one.state == "coming" for one in reading.hosts.values())
    num_there = sum(one.state != "draining" for one in reading.hosts.values())
    lacking = sum(reseated.unmet.values())
    largest = max((one.budget.cpus for one in reading.hosts.values()), default=0.0)
    if not lacking or largest <= 0:
        return _Adding()
    cpus = sum(
        workers * wishes[source].cpus / max(1, wishes[source].workers) for source, workers in reseated.unmet.items()
    )
    wanted = max(1, math.ceil(cpus / largest - EPSILON)) - coming
    if wanted <= 0:
        return _Adding()
    about = ", ".join(sorted(reseated.unmet))
    saved_s = settings.lookahead_s * lacking / max(1, sum(wish.workers for wish in wishes.values()))
    allowed = min(wanted, (settings.max_hosts or num_there) - num_there)
    refusal = (
        "the stall that they would save is too short"
        if saved_s < HOST_S / 10
        else "scaling.max_hosts allows no more"
        if allowed <= 0
        else "start them: this cluster cannot be scaled from here"
        if not reading.can_add_hosts
        else ""
    )
    text = f"{lacking} workers found no room, for which {wanted} loader hosts are lacking"
    if refusal:
        return _Adding(0, (Reason(about=about, text=f"{text}; {refusal}"),))
    return _Adding(allowed, (Reason(about=about, text=f"{text}; {allowed} started"),))
