"""What a run needs of a cluster, looked at beforehand: processors, memory, versions, clocks, ways to its workers."""

import asyncio
import socket
import statistics
import time
from collections.abc import Iterator

from dask.system import CPU_COUNT
from distributed import Client, Worker
from distributed.system import MEMORY_LIMIT

from msd.config.security import SecurityConfig
from msd.errors import ConfigError
from msd.runtime.dask.cluster import CONNECT_S, connect, workers_of
from msd.runtime.dask.loop import OwnLoop
from msd.runtime.dask.securing import dask_security
from msd.runtime.dask.versions import check_versions
from msd.runtime.health import Finding, fine

SMALL_BYTES = 4 << 30
SKEW_S = 1.0
"""Between clocks of machines: leases of checkpoints compare them."""
LOOKS = 5
SLOW_S = 0.05
REACHED_S = 5.0


def look_at_processors() -> Finding:
    """Return what this machine lets a run use, limits of a container included."""
    found = f"{CPU_COUNT} cores, {MEMORY_LIMIT / 2**30:.1f} GiB may be used here"
    if MEMORY_LIMIT >= SMALL_BYTES:
        return fine("machine", found)
    advice = "lower runtime.host_memory and runtime.workers, or raise the limit of the container"
    return Finding(subject="machine", verdict="notice", found=found, advice=advice)


def look_at_cluster(address: str, security: SecurityConfig | None = None) -> Iterator[Finding]:
    """Yield what there is to say of a scheduler and its workers."""
    loop = OwnLoop("msd-doctor")
    try:
        yield from loop.run(_looked(address, security))
    finally:
        loop.close()


async def _looked(address: str, security: SecurityConfig | None) -> list[Finding]:
    try:
        client = await connect(address, deadline_s=CONNECT_S, security=dask_security(security))
    except ConfigError as error:
        return [Finding(subject="scheduler", verdict="bad", found=str(error))]
    async with client:
        workers = {worker.address: worker.name for worker in await workers_of(client)}
        found = [await _answering(client)]
        if not workers:
            advice = "start some with `dask worker`, or say cluster.scale"
            return [*found, Finding(subject="workers", verdict="bad", found="there is none", advice=advice)]
        found.append(fine("workers", f"{len(workers)}: {', '.join(sorted(workers.values())[:8])}"))
        try:
            await check_versions(client, list(workers))
        except ConfigError as error:
            return [*found, Finding(subject="versions", verdict="bad", found=str(error))]
        found.append(fine("versions", "all workers have what this process has"))
        return [*found, await _clocks(client, workers), await _ways(client, workers)]


async def _answering(client: Client) -> Finding:
    """Return how long the scheduler takes to answer."""
    took = []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        await client.scheduler.identity(n_workers=0)
        took.append(time.perf_counter() - begun)
    median = statistics.median(took)
    found = f"it answers in {1e3 * median:.1f} ms (median of {LOOKS})"
    if median < SLOW_S:
        return fine("scheduler", found)
    advice = "a step does not wait for it, but losses are noticed later; give it a core of its own"
    return Finding(subject="scheduler", verdict="notice", found=found, advice=advice)


async def _clocks(client: Client, workers: dict[str, str]) -> Finding:
    before = time.time()
    theirs: dict[str, float] = await client.run(time.time, workers=list(workers))
    after = time.time()
    # Theirs was read some time between the two.
    skews = {name: max(before - theirs[at], theirs[at] - after, 0.0) for at, name in workers.items()}
    worst = max(skews, key=lambda name: skews[name])
    found = f"at most {skews[worst]:.3f} s beside that of this machine"
    if skews[worst] < SKEW_S:
        return fine("clocks", found)
    advice = "have machines keep the same time (chrony, ntpd): leases of checkpoints compare clocks"
    return Finding(subject="clocks", verdict="notice", found=f"{worst}: {found}", advice=advice)


async def _ways(client: Client, workers: dict[str, str]) -> Finding:
    """Return whether this machine reaches a fresh port of every worker, as ranks here do."""
    ports: dict[str, tuple[str, int]] = await client.run(_listen_once, workers=list(workers))
    unreached = []
    for at, (host, port) in ports.items():
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), REACHED_S)
            writer.close()
        except (OSError, TimeoutError) as error:
            unreached.append(f"{workers[at]} at {host}:{port} ({str(error) or 'no answer'})")
    if unreached:
        advice = "ranks connect to ports that the system gives workers: open them between these machines"
        return Finding(subject="ways", verdict="bad", found=f"cannot reach {'; '.join(unreached[:4])}", advice=advice)
    return fine("ways", f"a free port of each of {len(workers)} workers is reached from here")


async def _listen_once(dask_worker: Worker) -> tuple[str, int]:
    """Listen at a free port of this worker for as long as somebody might try; Dask gives the worker by that name."""
    host = dask_worker.ip
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.close()

    server = await asyncio.start_server(met, host, 0, family=family)
    asyncio.get_running_loop().call_later(2 * REACHED_S, server.close)
    return host, server.sockets[0].getsockname()[1]
