"""Programs that are started again whenever they end, and what /proc says of processes."""

import contextlib
import json
import socket
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from fault_ranks import Taken, read_taken
from processes import Program, Start

MOST_STARTS = 40
TOLD_LIVES = 4


@dataclass
class Service:
    """A program that is started again whenever it ends, or whenever it ends otherwise than well."""

    start: Start
    name: str
    command: tuple[object, ...]
    env: dict[str, str]
    is_wanted: bool = True
    may_end: bool = False
    """Whether it has done what it was started for when it ends well."""
    starts: int = 0
    program: Program | None = None
    lives: deque[Program] = field(default_factory=lambda: deque(maxlen=TOLD_LIVES))
    """The latest, also those that ended."""

    def tick(self, *, again: bool = True) -> None:
        """Start it unless it runs, or has done all.

        Args:
            again: Start it also if it ran before.
        """
        status = None if self.program is None else self.program.process.poll()
        if self.may_end and status == 0:
            self.is_wanted = False
        if self.is_wanted and (self.program is None or (again and status is not None)):
            assert self.starts < MOST_STARTS, f"{self.name} has ended {self.starts} times: {self.output[-2000:]}"
            self.program = self.start(f"{self.name}.{self.starts}", *self.command, env=self.env)
            self.lives.append(self.program)
            self.starts += 1

    @property
    def pid(self) -> int | None:
        """Of the process that runs; None between two of them."""
        running = self.program is not None and self.program.process.poll() is None
        return self.program.process.pid if running and self.program is not None else None

    @property
    def output(self) -> str:
        return "" if self.program is None else self.program.output

    @property
    def last_words(self) -> str:
        """What its latest lives wrote last, and how each of them ended."""
        ended = [(program, program.process.poll()) for program in self.lives]
        return "\n".join(
            f"--- {program.name} ({'runs' if status is None else f'ended with {status}'}): {program.output[-3000:]}"
            for program, status in ended
        )


class ProgramRank:
    """A rank that is a service: when one is killed, all are started again from a state that they have in common."""

    def __init__(self, service: Service, out: Path, rank: int) -> None:
        self.service, self.rank, self._out = service, rank, out
        self._seen_bytes = self._next_step = 0

    @property
    def is_done(self) -> bool:
        program = self.service.program
        return program is not None and program.process.poll() == 0

    def read(self) -> list[Taken]:
        """Return what it has taken so far, over all its lives."""
        return read_taken(self._out)

    @property
    def next_step(self) -> int:
        """The step after the latest that it wrote down."""
        if self._out.exists():
            with self._out.open("rb") as file:
                file.seek(self._seen_bytes)
                while (line := file.readline()).endswith(b"\n"):
                    self._seen_bytes = file.tell()
                    with contextlib.suppress(ValueError):
                        self._next_step = max(self._next_step, json.loads(line)["step"] + 1)
        return self._next_step

    @property
    def is_lost(self) -> bool:
        """Whether it ended otherwise than by having taken all."""
        program = self.service.program
        return program is not None and program.process.poll() not in (None, 0)

    def end(self) -> None:
        """Have it not started again."""
        self.service.is_wanted = False


def worker_name(pid: int) -> str | None:
    words = command_of(pid).split()
    return words[words.index("--name") + 1] if "distributed.cli.dask_worker" in words and "--name" in words else None


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def is_alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def born(pid: int) -> str:
    """Return when a process began, in ticks since the machine did; nothing if there is none."""
    return "".join(_stat(pid)[19:20])


def _stat(pid: int) -> list[str]:
    """Return what /proc says of a process after its name."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
