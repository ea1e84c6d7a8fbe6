"""Programs that a test starts: their output is kept, and none outlives the test."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


class Program:
    """One running program and all that it started."""

    def __init__(
        self, command: Sequence[str], folder: Path, name: str, env: Mapping[str, str], prefix: Sequence[str]
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | _QUIET | dict(env),
                cwd=ROOT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float) -> str:
        """Return what it wrote, once it has ended well."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._hangs(timeout_s) from None
        assert status == 0, f"{self.name} ended with {status}: {self.output[-2000:]}"
        return self.output

    def stop(self, timeout_s: float = 15.0) -> int:
        """Interrupt it as a service manager does, and return its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._hangs(timeout_s) from None

    def _hangs(self, timeout_s: float) -> AssertionError:
        """Return what to raise for a program that does not end, with where each of its threads is."""
        self.process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return AssertionError(f"{self.name} still runs after {timeout_s:g} s: {self.output[-8000:]}")

    def kill(self) -> None:
        """End it and all that it started, also in sessions of their own."""
        if self.process.poll() is not None:
            return  # Its number may be another's by now.
        started = descendants(self.process.pid)
        for pid in (self.process.pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def programs(folder: Path) -> Iterator["Start"]:
    """Yield a function that starts programs; the end of the block ends them, the last one first.

    Their temporary files lie in a folder of their own, with a path that is short enough for sockets: what they leave is
    seen there, and removed.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        start = Start(folder, Path(temporary))
        try:
            yield start
        finally:
            for program in reversed(start.started):
                program.kill()


class Start:
    """Starts Python programs by their arguments."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.temporary = temporary
        self.started: list[Program] = []

    def __call__(
        self, name: str, *command: object, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> Program:
        """Start one; `prefix` is a program that starts it elsewhere."""
        env = {"TMPDIR": str(self.temporary), **(env or {})}
        program = Program([str(word) for word in command], self.folder, name, env, prefix)
        self.started.append(program)
        return program


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, and what those started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child)
    return found


def wait_until(is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for a condition; fail with `what` it waited for."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)
