"""What runs in the processes that transform rows: `python -m msd.loader.processes.child CONTROL`, a socket.

The process that is started imports what all need and divides for each process that is asked for over the control
socket; so they share its memory. Itself it runs no transform and no thread. It tells over that socket how each of them
ended, and ends when it is closed, in whatever way its host ended; the kernel then ends the others, also one whose
transform never returns.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import select
import signal
import socket
import sys

import cloudpickle

import msd.errors
from msd.core.text import encodable
from msd.errors import MsdError, told
from msd.loader.poison.slots import MOST_ROWS, Slots
from msd.loader.processes.codec import Writer, plain_results, read
from msd.loader.processes.frames import ASKED, DONE, ENDED, FAILED, RAISED, SHORT, Frame, receive, send
from msd.loader.processes.measure import timed_work
from msd.loader.transforms.chain import RowResult, TransformChain

_PR_SET_PDEATHSIG = 1


def main(control: socket.socket) -> None:
    """Divide when asked to, tell of ends, and see to the end of all."""
    gc.freeze()
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    alive: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 12)
            _tell_of_ends(control, alive)
        if control.fileno() in ready:
            said, files, _, _ = socket.recv_fds(control, ASKED.size, 2)
            if not said:
                return
            (number,) = ASKED.unpack(said)
            if files:
                alive[_divided(control, (woken, wakes), *files)] = number
            else:
                for pid in [pid for pid, other in alive.items() if other == number]:
                    os.kill(pid, signal.SIGKILL)


def _divided(control: socket.socket, pipe: tuple[int, int], rows: int, notes: int) -> int:
    """Return the process that now serves a socket of rows."""
    own = os.getpid()
    pid = os.fork()
    if not pid:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for end in pipe:
            os.close(end)
        _end_with_parent(own)
        connection = socket.socket(fileno=rows)
        # A program that a transform starts must not hold it open.
        connection.set_inheritable(False)
        slots = Slots(mmap.mmap(notes, Slots.size(1)), 1)
        os.close(notes)
        _serve(connection, slots)
        os._exit(0)
    # Else the host would not notice the end of the process that has it.
    os.close(rows)
    os.close(notes)
    return pid


def _end_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _tell_of_ends(control: socket.socket, alive: dict[int, int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        # Nobody listens any more where the host is gone: then all end.
        with contextlib.suppress(OSError):
            control.sendall(ENDED.pack(alive.pop(pid), os.waitstatus_to_exitcode(status)))


def _serve(connection: socket.socket, slots: Slots) -> None:
    chains: dict[str, TransformChain] = {}
    while True:
        try:
            asked = receive(connection)
            send(connection, _answer(chains, asked, slots))
        except (EOFError, OSError):
            return


def _answer(chains: dict[str, TransformChain], asked: Frame, slots: Slots) -> Frame:
    writer = Writer()
    try:
        results, timing = timed_work(lambda: _transformed(chains, asked, slots))
        took = [timing.wall_s, timing.cpu_s, timing.queued_s]
        return Frame(writer.text([DONE, plain_results(results), took]), writer.arrays)
    except MsdError as error:
        # A class of the user's own is known to the host by the one that it derives from.
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == msd.errors.__name__)
        said = [RAISED, kind, encodable(str(error))]
    except MemoryError as error:
        said = [SHORT, encodable(told(error))]
    except BaseException as error:
        # Also what would end the process: the host is to say so, and where it happened.
        ends = "" if isinstance(error, Exception) else "; a transform must not end the process that it runs in"
        said = [FAILED, encodable(told(error)) + ends]
    return Frame(Writer().text(said), [])


def _transformed(chains: dict[str, TransformChain], asked: Frame, slots: Slots) -> list[RowResult]:
    source, recipe, rows = read(asked)
    if recipe is not None:
        chains[source] = cloudpickle.loads(recipe).build()
    chain = chains[source]
    results: list[RowResult] = []
    for first in range(0, len(rows), MOST_ROWS):
        some = [(ordinal, row) for ordinal, row in rows[first : first + MOST_ROWS]]
        with slots.hold(0, [ordinal for ordinal, _ in some]) as slot:
            results += chain.apply(some, slot.at)
    return results


if __name__ == "__main__":
    own = socket.socket(fileno=int(sys.argv[1]))
    own.set_inheritable(False)
    main(own)
