"""The process that others come from, and those that came from it, as their host sees them."""

import contextlib
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time

from msd.errors import EngineError, how_ended
from msd.loader.poison.slots import InHand, Slots, in_hand, writer
from msd.loader.processes.frames import ASKED, ENDED, Frame, receive, receive_bytes, send

END_S = 5.0
"""How a process ended is known within this, and all of them have ended."""
LOOK_S = 0.2
"""Who waits for an answer looks this often at what the process is at."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Gone(Exception):
    """A process ended while it had rows."""


class Process:
    """One process, as the thread sees it that has it."""

    def __init__(self, number: int, root: "Root", connection: socket.socket, notes: mmap.mmap) -> None:
        self.number = number
        self.root = root
        self.known: set[str] = set()
        """Sources whose chain it has."""
        self._connection = connection
        self._notes = notes
        self._ended_for = ""

    def ask(self, frame: Frame) -> None:
        """Send a message."""
        # Who is gone gives no answer: that is where it is noticed.
        with contextlib.suppress(OSError):
            send(self._connection, frame)

    def answer(self, hang_s: float, memory: int | None) -> Frame:
        """Return its answer.

        Args:
            hang_s: A row that takes longer ends it.
            memory: Bytes; a row with which it holds more ends it. None is any number.

        Raises:
            Gone: If it ended.
        """
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        while not waiting.poll(LOOK_S * 1000):
            self._look(hang_s, memory)
        try:
            return receive(self._connection)
        except EOFError:
            raise Gone from None

    def in_hand(self) -> list[InHand]:
        """Return what it is at, or was when it ended."""
        return in_hand(self._notes)

    def how_ended(self) -> str:
        """Return why or how it ended."""
        how = self.root.how_ended(self.number)
        return self._ended_for or how

    def close(self) -> None:
        """Let it end: it has nothing to do any more."""
        self._connection.close()

    def _look(self, hang_s: float, memory: int | None) -> None:
        if self._ended_for:
            return
        now_ns = time.monotonic_ns()
        if any(entry.age_s(now_ns) > hang_s * len(entry.ordinals) for entry in self.in_hand()):
            self._ended_for = f"no answer for {hang_s:g} s"
        elif memory is not None and own_bytes(writer(self._notes)[0]) > memory:
            self._ended_for = more_than(memory)
        if self._ended_for:
            self.root.end(self.number)


class Root:
    """The process that others come from; they end with it."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            EngineError: If that cannot be done.
        """
        own, theirs = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "msd.loader.processes.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                # Ctrl-C is for the process that started the run.
                start_new_session=True,
            )
        except OSError as error:
            own.close()
            raise EngineError(
                f"processes that transform rows cannot be started: {error}; set transform_in: threads"
            ) from None
        finally:
            theirs.close()
        self._control = own
        self._control.settimeout(END_S)
        self._asking = threading.Lock()
        self._hearing = threading.Lock()
        self._ended: dict[int, int] = {}
        self._num_started = 0

    def start(self) -> Process:
        """Return one process more.

        Raises:
            OSError: If this one is gone.
        """
        own, theirs = socket.socketpair()
        notes = os.memfd_create("msd-notes", os.MFD_CLOEXEC)
        try:
            os.ftruncate(notes, Slots.size(1))
            with self._asking:
                self._num_started += 1
                number = self._num_started
                socket.send_fds(self._control, [ASKED.pack(number)], [theirs.fileno(), notes])
            return Process(number, self, own, mmap.mmap(notes, Slots.size(1)))
        except OSError:
            own.close()
            raise
        finally:
            theirs.close()
            os.close(notes)

    def end(self, number: int) -> None:
        """End one, whatever it is at."""
        with self._asking, contextlib.suppress(OSError):
            self._control.sendall(ASKED.pack(number))

    def how_ended(self, number: int) -> str:
        """Return how a process ended that is gone."""
        with self._hearing:
            try:
                while number not in self._ended:
                    other, status = ENDED.unpack(receive_bytes(self._control, ENDED.size))
                    self._ended[other] = status
            except EOFError:
                return "with all others"
            return how_ended(self._ended.pop(number))

    def close(self) -> None:
        """End all that came from it, whatever they are at."""
        # It ends when nobody holds the other end, and the kernel ends the others then.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._control.close()


def own_bytes(pid: int | str = "self") -> int:
    """Return what a process holds in memory that is no file's and not shared; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as counts:
            _, resident, shared, *_ = counts.read().split()
            return (int(resident) - int(shared)) * _PAGE
    except (OSError, ValueError):
        return 0


def more_than(memory: int) -> str:
    """Return what is said of a row with which a process holds more than it may."""
    return f"more than {memory / (1 << 30):.3g} GiB"


def _environment() -> dict[str, str]:
    """Return the environment of the processes: modules are found where this process finds them."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
    # There is a process for each core.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    return environment
