"""Where ranks ask first: its address stays the same as long as the engine lives, whatever is replaced meanwhile."""

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msd
from msd.client.link.certificates import Certificates
from msd.client.link.messages import NotYet, Place
from msd.client.link.server import LinkServer
from msd.core.mesh import Mesh
from msd.errors import ClosedError, ConfigError, EngineError


class Registry:
    """Answers WHERE, and who steers the run: see `msd.client.link.server.LinkHandler`."""

    def __init__(
        self,
        mesh: Mesh,
        *,
        run: str,
        token: str,
        host: str,
        port: int,
        control: Callable[[str, dict[str, Any]], Any] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """Begin to listen.

        Args:
            mesh: Whose ranks may ask.
            run: Identity of the run.
            token: That ranks must show.
            host: Name or address to listen at.
            port: 0 takes any that is free.
            control: Answers who steers the run: a method, and what it takes.
            certificates: Of the run, to speak TLS alone; None speaks none.

        Raises:
            ConfigError: If the host or port cannot be had, or the certificates cannot be used.
        """
        self._mesh = mesh
        self._control = control
        self._changed = threading.Lock()
        self._places: dict[int, Place] = {}
        self._waits_for: dict[int, str] = {}
        self._error: Exception | None = None
        try:
            self._server = LinkServer(
                self,
                run=run,
                token=token,
                version=msd.__version__,
                host=host,
                port=port,
                certificates=certificates,
            )
        except OSError as error:
            raise ConfigError(
                f"the run cannot listen at {host}:{port} ({_reason(error)}); choose another host or port, or port 0 "
                "for any that is free"
            ) from None
        scheme, _, place = self._server.addresses[-1].partition("://")
        self.address = f"{'msd' if scheme == 'tcp' else scheme}://{place}?run={run}&token={token}"
        """What ranks connect to."""

    def publish(self, ranks: Sequence[int], place: Mapping[str, Any]) -> None:
        """Take where ranks are served from now on."""
        at = Place(host=place["host"], addresses=tuple(place["addresses"]))
        with self._changed:
            self._places.update(dict.fromkeys(ranks, at))

    def withdraw(self, ranks: Sequence[int], waits_for: str) -> None:
        """Take that ranks are served nowhere, and what they wait for, in words."""
        with self._changed:
            for rank in ranks:
                self._places.pop(rank, None)
                self._waits_for[rank] = waits_for

    def move(self, mesh: Mesh) -> None:
        """Serve the ranks of another mesh; the places of the old one are gone."""
        with self._changed:
            self._mesh = mesh
            self._places.clear()
            self._waits_for.clear()

    def fail(self, error: Exception) -> None:
        """Have every rank that asks hear why the run cannot go on."""
        with self._changed:
            self._error = self._error or error

    def close(self) -> None:
        """End in order. Closing twice is fine."""
        self._server.close(
            ClosedError("the run was closed; start it again, connect, and load the last saved state to go on")
        )

    def where(self, rank: int) -> list[Place] | NotYet:
        """Return where a rank finds its constructor."""
        with self._changed:
            self._mesh.check_rank(rank)
            place = self._places.get(rank)
            if place is not None:
                # Also when the run has failed: what is assembled is still handed out there, and the error after it.
                return [place]
            if self._error is not None:
                raise self._error.with_traceback(None)
            return NotYet(waits_for=self._waits_for.get(rank, "the constructors to be placed"))

    def control(self, method: str, arguments: dict[str, Any]) -> Any:
        """Return what somebody asks who steers the run."""
        if self._control is None:
            raise EngineError("this run takes no orders; use its engine")
        with self._changed:
            if self._error is not None:
                raise self._error.with_traceback(None)
        return self._control(method, arguments)

    def hello(self, rank: int, *stated: Any) -> NoReturn:
        """Refuse: ranks are served elsewhere."""
        self._refuse()

    def take(self, *asked: Any) -> NoReturn:
        """Refuse: ranks are served elsewhere."""
        self._refuse()

    def waited(self, rank: int, session: int, waited_s: float) -> None:
        """Nothing to note."""

    def load(self, *asked: Any) -> NoReturn:
        """Refuse: ranks are served elsewhere."""
        self._refuse()

    def bye(self, rank: int, session: int) -> None:
        """Nothing to release."""

    def lost(self, rank: int, session: int) -> None:
        """Nothing to note."""

    def _refuse(self) -> NoReturn:
        raise EngineError("the registry of a run serves no rank; ask it WHERE, and go there")


def socket_path(run: str, number: int, epoch: int, folder: str | None = None) -> str | None:
    """Return where a constructor's Unix socket may lie, or None where the system's limit of 107 bytes leaves no room.

    In the folder of a cluster of the run's own it goes with that, however the constructor ends.

    An epoch has a socket of its own: what listens at the one before may be only slow.
    """
    path = os.path.join(folder or tempfile.gettempdir(), f"msd-{run}-{number}-e{epoch}.sock")
    return path if len(os.fsencode(path)) <= 107 else None


def own_host(scheduler: str) -> str:
    """Return the address of this machine by which others on the way to a scheduler can reach it.

    Args:
        scheduler: Address, such as `tcp://10.0.0.1:8786`.
    """
    host, _, port = scheduler.partition("://")[2].rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # No packet goes out: the system only chooses the interface.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"


def _reason(error: OSError) -> str:
    # What is raised for a port may say the address once more.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
