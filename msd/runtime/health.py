"""What a run needs of the machine that it is started on, of its storage, and of its checkpoint: looked at beforehand.

`msd.runtime.dask.health` does the same for a cluster.
"""

import os
import platform
import resource
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from msd.checkpoint.folder import WRITING, open_folder
from msd.config import Config
from msd.errors import MsdError
from msd.sources.cache import default_cache_dir
from msd.sources.descriptors import MAX_OPEN_FILES
from msd.sources.files import Opener, is_local
from msd.sources.listing import list_shards

Verdict = Literal["fine", "notice", "bad"]

FILES_WANTED = 4 * MAX_OPEN_FILES
"""What a loader host opens of sources, and as much again for connections and libraries, twice."""
FREE_BYTES = 1 << 30
READ_BYTES = 8 << 20
SLOW_FIRST_BYTE_S = 0.2
SLOW_BYTES_S = 20e6
SLOW_WRITE_S = 0.5
MOST_SOCKET_BYTES = 107
LONGEST_SOCKET = "msd-00000000/msd-000000000000-000-e000.sock"
TOLD = ("dask", "pyarrow", "numpy", "tokenizers", "torch")
"""Packages whose versions people ask for; of all others it is told only if they are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    verdict: Verdict
    """`bad` keeps a run from starting or going on, `notice` may cost speed."""
    found: str
    advice: str = ""
    """What to do, unless all is well."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return asdict(self)


def fine(subject: str, found: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(subject=subject, verdict="fine", found=found)


def look_at_machine() -> Iterator[Finding]:
    """Yield what this machine has for a run, whatever its configuration."""
    yield fine("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield _packages(metadata.requires("msd") or [], _version)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(soft, hard)
    yield _temporary()
    yield _loopback()
    yield _writable("index cache", default_cache_dir(), "set MSD_CACHE to a directory that can be written")


def look_at_storage(config: Config) -> Iterator[Finding]:
    """Yield how fast each place is that sources lie at: one source of each is listed, and the beginning of it read."""
    seen: set[str] = set()
    for name, source in config.sources.items():
        paths = [source.path] if isinstance(source.path, str) else list(source.path or ())
        for path in paths[:1]:
            place = place_of(path)
            if place in seen:
                continue
            seen.add(place)
            try:
                first = list_shards(name, source)[0]
                opener = Opener(source.storage_options)
                begun = time.perf_counter()
                with opener.open(first.path) as file:
                    nbytes = len(file.read(1))
                    first_s = time.perf_counter() - begun
                    nbytes += len(file.read(READ_BYTES - nbytes))
                    seconds = time.perf_counter() - begun
            except (MsdError, OSError) as error:
                yield Finding(
                    subject=f"storage of {name}",
                    verdict="bad",
                    found=str(error),
                    advice="" if isinstance(error, MsdError) else "see to the path, the network or credentials",
                )
                continue
            yield storage(name, nbytes, first_s, seconds)


def look_at_checkpoint(config: Config) -> Iterator[Finding]:
    """Yield whether states can be kept, by keeping a file for a moment."""
    wanted = config.checkpoint
    if wanted is None:
        yield Finding(
            subject="checkpoint",
            verdict="notice",
            found="none is kept",
            advice="set checkpoint.path, so that a run can go on where another ended",
        )
        return
    name = f"{WRITING}doctor-{os.getpid()}"
    path = wanted.path if "://" in wanted.path or "::" in wanted.path else str(_there(Path(wanted.path).absolute()))
    begun = time.perf_counter()
    try:
        folder = open_folder(path, wanted.storage_options)
        folder.write(name, bytes(4096))
        seconds = time.perf_counter() - begun
        folder.remove(name)
    except MsdError as error:
        yield Finding(subject="checkpoint", verdict="bad", found=str(error))
        return
    found = f"{wanted.path}: 4 KiB are written for good in {1e3 * seconds:.0f} ms"
    if seconds < SLOW_WRITE_S:
        yield fine("checkpoint", found)
    else:
        advice = "saves are made beside the steps; keep checkpoint.every well above it"
        yield Finding(subject="checkpoint", verdict="notice", found=found, advice=advice)


def open_files(soft: int, hard: int) -> Finding:
    """Return whether a process may have as many files open as one with many sources wants."""
    allowed = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    found = f"{soft:,} a process" + (f", which a loader host raises to {allowed}" if soft != hard else "")
    if hard == resource.RLIM_INFINITY or hard >= FILES_WANTED:
        return fine("open files", found)
    advice = f"raise the limit (ulimit -Hn) to {FILES_WANTED} or more; with less, files are opened again and again"
    return Finding(subject="open files", verdict="notice", found=found, advice=advice)


def storage(name: str, nbytes: int, first_s: float, seconds: float) -> Finding:
    """Return what the time says that a read of the beginning of a file took.

    Args:
        name: The source's.
        nbytes: That were read.
        first_s: Seconds to the first byte, opening included.
        seconds: In all.
    """
    rate = nbytes / max(seconds, 1e-9)
    found = (
        f"{1e3 * first_s:.1f} ms to the first byte, {rate / 1e6:,.0f} MB/s to one reader over {nbytes / 1e6:.1f} MB "
        "(from memory, if it was read lately)"
    )
    # A small file says nothing of the rate: all of it is the time to the first byte.
    is_slow = first_s > SLOW_FIRST_BYTE_S or (nbytes >= READ_BYTES and rate < SLOW_BYTES_S)
    if not is_slow:
        return fine(f"storage of {name}", found)
    advice = "several loaders read side by side: see `msd profile` and `msd partition`, or bring the data nearer"
    return Finding(subject=f"storage of {name}", verdict="notice", found=found, advice=advice)


def place_of(path: str) -> str:
    """Return what has its own speed: the server of a URL, or the device that a path lies on."""
    path = path.removeprefix("file://")
    if not is_local(path):
        parts = urlsplit(path.rpartition("::")[2])
        return f"{parts.scheme}://{parts.netloc}"
    return str(_there(Path(path).expanduser().absolute()).stat().st_dev)


def _there(path: Path) -> Path:
    """Return the nearest folder above a path that exists, or the path itself."""
    return next(one for one in (path, *path.parents) if one.exists())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages(requires: Sequence[str], version_of: Callable[[str], str | None]) -> Finding:
    """Return whether installed packages are those that msd was made for; extras count where they are installed."""
    told, wrong = [], []
    for requirement in map(Requirement, requires):
        is_extra = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        version = version_of(requirement.name)
        if version is None:
            if not is_extra:
                wrong.append(f"{requirement.name} is missing, {requirement.specifier} is wanted")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
        elif requirement.name in TOLD:
            told.append(f"{requirement.name} {version}")
    if wrong:
        advice = "install msd again in an environment of its own (pip install -c constraints.txt ...)"
        return Finding(subject="packages", verdict="bad", found="; ".join(wrong), advice=advice)
    return fine("packages", ", ".join(told))


def _temporary() -> Finding:
    """Return whether a run can keep what it needs for a while: a folder of its own, with sockets for ranks in it."""
    subject, root = "temporary files", tempfile.gettempdir()
    advice = "set TMPDIR to a short path of a local file system with room that can be written"
    try:
        with tempfile.TemporaryDirectory(prefix="msd-") as folder, socket.socket(socket.AF_UNIX) as there:
            there.bind(str(Path(folder, "probe")))
    except OSError as error:
        return Finding(subject=subject, verdict="bad", found=f"{root}: {error}", advice=advice)
    free = _free(Path(root))
    found = f"{root}: {free / 2**30:.1f} GiB free"
    if len(os.fsencode(os.path.join(root, LONGEST_SOCKET))) > MOST_SOCKET_BYTES:
        found += f", but its path is too long for sockets ({MOST_SOCKET_BYTES} bytes): ranks here would use TCP"
    elif free >= FREE_BYTES:
        return fine(subject, found)
    return Finding(subject=subject, verdict="notice", found=found, advice=advice)


def _loopback() -> Finding:
    """Return whether a process can be reached at a port of this machine."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5.0):
                pass
    except OSError as error:
        advice = "let processes listen and connect on 127.0.0.1; a firewall or sandbox may forbid it"
        return Finding(subject="ports", verdict="bad", found=f"no connection within 127.0.0.1: {error}", advice=advice)
    return fine("ports", "a free one is given and can be reached on 127.0.0.1")


def _writable(subject: str, folder: Path, advice: str) -> Finding:
    there = _there(folder.absolute())
    try:
        if not stat.S_ISDIR(there.stat().st_mode):
            return Finding(subject=subject, verdict="notice", found=f"{there} is no directory", advice=advice)
        with tempfile.NamedTemporaryFile(dir=there, prefix=WRITING):
            free = _free(there)
    except OSError as error:
        return Finding(subject=subject, verdict="notice", found=f"{folder}: {error.strerror or error}", advice=advice)
    return fine(subject, f"{folder}, {free / 2**30:.1f} GiB free")


def _free(folder: Path) -> int:
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return 0
