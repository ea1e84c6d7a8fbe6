"""What runs in the processes that transform rows: `python -m msd.loader.processes.child CONTROL ROWS...`, all sockets.

The process that is started imports what all need and divides into one for each socket of rows; so they share its
memory. Itself it runs no transform. It tells over the control socket how each of them ended, and ends when that is
closed, in whatever way its host ended; the kernel then ends the others, also one whose transform never returns.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

import cloudpickle

import msd.errors
from msd.core.text import encodable
from msd.errors import MsdError, told
from msd.loader.processes.codec import Writer, plain_results, read
from msd.loader.processes.frames import DONE, ENDED, FAILED, RAISED, Frame, receive, send
from msd.loader.transforms.chain import RowResult, TransformChain

_PR_SET_PDEATHSIG = 1


def main(control: socket.socket, rows: Sequence[socket.socket]) -> None:
    """Divide, and see to the end of all."""
    gc.freeze()
    own = os.getpid()
    numbers: dict[int, int] = {}
    for number, connection in enumerate(rows):
        pid = os.fork()
        if not pid:
            control.close()
            for other in rows[number + 1 :]:
                other.close()
            _end_with_parent(own)
            _serve(connection)
            os._exit(0)
        numbers[pid] = number
        # Else the host would not notice the end of the process that has it.
        connection.close()
    threading.Thread(target=_tell_of_ends, args=(control, numbers), daemon=True).start()
    control.recv(1)


def _end_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _tell_of_ends(control: socket.socket, numbers: dict[int, int]) -> None:
    for _ in range(len(numbers)):
        pid, status = os.wait()
        control.sendall(ENDED.pack(numbers[pid], os.waitstatus_to_exitcode(status)))


def _serve(connection: socket.socket) -> None:
    chains: dict[str, TransformChain] = {}
    while True:
        try:
            asked = receive(connection)
            send(connection, _answer(chains, asked))
        except (EOFError, OSError):
            return


def _answer(chains: dict[str, TransformChain], asked: Frame) -> Frame:
    writer = Writer()
    try:
        return Frame(writer.text([DONE, plain_results(_transformed(chains, asked))]), writer.arrays)
    except MsdError as error:
        # A class of the user's own is known to the host by the one that it derives from.
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == msd.errors.__name__)
        said = [RAISED, kind, encodable(str(error))]
    except BaseException as error:
        # Also what would end the process: the host is to say so, and where it happened.
        ends = "" if isinstance(error, Exception) else "; a transform must not end the process that it runs in"
        said = [FAILED, encodable(told(error)) + ends]
    return Frame(Writer().text(said), [])


def _transformed(chains: dict[str, TransformChain], asked: Frame) -> list[RowResult]:
    source, recipe, rows = read(asked)
    if recipe is not None:
        chains[source] = cloudpickle.loads(recipe).build()
    return chains[source].apply([(ordinal, row) for ordinal, row in rows])


if __name__ == "__main__":
    first, *others = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    for each in (first, *others):
        # A program that a transform starts must not hold them open.
        each.set_inheritable(False)
    main(first, others)
