"""A rank in another process than its constructor: batches come over the link, fetched ahead.

A thread of its own receives; the training loop picks up what is there. Bytes are copied once, by the kernel, while the
loop runs.
"""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from msd.client.link.arrival import arrival
from msd.client.link.asking import ask_run
from msd.client.link.batches import decode
from msd.client.link.certificates import Certificates
from msd.client.link.channel import Channel
from msd.client.link.frames import Frame, Kind
from msd.client.link.messages import Ended, Load, Moved, Stated, Welcome, error_of, moved_of, optional, value
from msd.client.link.prefetch import Prefetch
from msd.client.link.reach import Reach, reason
from msd.client.link.reporting import Reporter
from msd.client.link.watchdog import Watchdog
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.core.state import StateDict
from msd.errors import ClosedError, ConfigError, DeadlineError, EngineError, MsdError

_LOG = logging.getLogger(__name__)
_WAIT_S = 2.0
"""How long the run may keep a request before it says what it waits for."""
_SILENCE_S = 3.0
"""How much longer until a run that says nothing is taken for lost."""
_LOOK_S = 0.5
_PAUSES_S = (0.05, 1.0)
"""The first and the longest pause between tries to connect."""
_FAREWELL_S = 10.0
_DEADLINE_S = 300.0
_LOAD_ID = -1
_BYE_ID = 0


@dataclass(eq=False)
class _Loading:
    """A load that the run has not answered yet; repeated on a new connection it is the same load."""

    load: Load
    error: MsdError | None = None
    is_done: bool = False


class SocketTransport:
    """Serves one rank from wherever the run holds its batches; see `msd.client.client.BatchTransport`."""

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float | None = None,
        warn_s: float | None = 30.0,
        prefetch: int = 2,
        certificates: Certificates | None = None,
    ) -> None:
        """Get ready; `connect` dials.

        Args:
            address: `msd://host:port?token=...`, or another form that `msd.client.link.address` names.
            deadline_s: The loop waits for nothing longer than that. None takes `runtime.deadline_s` of the run, and
                until the run answers its default.
            warn_s: A wait of the loop that lasts so long is logged as a warning, and again each time it has lasted
                twice as long; None logs none.
            prefetch: Steps that are held for the loop.
            certificates: Of the rank: with them nothing but TLS is spoken on TCP; None speaks none.

        Raises:
            ConfigError: If a number cannot be used.
        """
        if prefetch < 1 or any(limit is not None and not limit > 0 for limit in (deadline_s, warn_s)):
            raise ConfigError(
                "prefetch must be at least 1, deadline_s and warn_s above 0, "
                f"got prefetch={prefetch}, deadline_s={deadline_s}, warn_s={warn_s}"
            )
        self._address = address
        self._deadline_s = _DEADLINE_S if deadline_s is None else deadline_s
        self._follows_deadline = deadline_s is None
        self._warn_s = warn_s
        self._certificates = certificates
        self._changed = threading.Condition()
        self._prefetch = Prefetch(depth=prefetch)
        self._rank = -1
        self._run: str | None = None
        self._mesh: Mesh | None = None
        self._session = 0
        self._channel: Channel | None = None
        self._is_connected = False
        self._is_closing = False
        self._heard_at = 0.0
        """When the run last said something, or was last asked something."""
        self._loading: _Loading | None = None
        self._num_loads = 0
        self._client = uuid.uuid4().hex
        self._waits_for = "the run to answer"
        self._error: Exception | None = None
        """Why nothing will come any more."""
        self._thread: threading.Thread | None = None
        self._reporter: Reporter | None = None

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh of the run, known once the rank is connected."""
        if self._mesh is None:
            raise EngineError("the mesh of the run is known once a rank is connected; connect first")
        return self._mesh

    def connect(self, rank: int) -> int:
        """Connect the rank, waiting for the run to appear.

        Raises:
            DeadlineError: If the run cannot be reached in time.
            MsdError: If it refuses the rank.
        """
        if self._thread is not None:
            raise EngineError(f"this link serves rank {self._rank}; make another one for rank {rank}")
        self._rank = rank
        self._thread = threading.Thread(target=self._receive, name=f"msd-rank-{rank}", daemon=True)
        self._thread.start()
        try:
            with self._changed:
                self._wait(lambda: self._mesh is not None, "to be connected")
                return self._session
        except BaseException:
            self.disconnect(rank, 0)
            raise

    def take(self, rank: int, session: int) -> RankBatch | None:
        """Return the rank's next batch, or None when the run has ended.

        Raises:
            DeadlineError: If the batch does not come; names the rank, the step, and what is waited for.
            MsdError: What the run raised, or why it cannot be reached.
        """
        with self._changed:
            self._prefetch.asks()
            if not self._prefetch.is_ready:
                self._tell()
                began = time.monotonic()
                self._wait(lambda: self._prefetch.is_ready, f"for step {self._prefetch.to_fetch}")
                self._prefetch.waited_s += time.monotonic() - began
            batch = self._prefetch.hand_out()
            if batch is not None:
                self._tell()
            return batch

    def position(self, rank: int, session: int) -> str:
        """Return the run's position after the last batch that was handed out, as JSON."""
        with self._changed:
            return self._prefetch.position

    def stands(self, rank: int, session: int) -> tuple[int, int]:
        """Return the generation and the step that is handed out next, as far as the run has said."""
        with self._changed:
            return self._prefetch.generation, self._prefetch.next_step

    def load(self, rank: int, session: int, state: StateDict, *, force: bool = False) -> None:
        """Move the run to a saved position; see `RankClient.load_state_dict`."""
        with self._changed:
            load = Load(load_id=uuid.uuid4().hex, number=self._num_loads + 1, state=state, force=force)
            loading = self._loading = _Loading(load)
            try:
                self._say_load()
                self._wait(lambda: loading.is_done, "to load a state")
            except BaseException:
                # The run may be at work on it still, and hears nothing else on this connection until it is done.
                if self._channel is not None:
                    self._channel.abort()
                raise
            finally:
                self._loading = None
                self._tell()
            if loading.error is not None:
                raise loading.error

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        """Have what training sees of the sources journalled, on a connection beside the batches."""
        if self._reporter is None:
            self._reporter = Reporter(self._send_report, name=f"rank {self._rank}")
        self._reporter.report(losses)

    def _send_report(self, losses: dict[str, float]) -> None:
        ask_run(
            self._address,
            "report",
            {"losses": losses, "who": f"rank {self._rank}"},
            deadline_s=self._deadline_s,
            certificates=self._certificates,
        )

    def disconnect(self, rank: int, session: int) -> None:
        """Release the rank; its thread and connection are gone afterwards."""
        if self._reporter is not None:
            self._reporter.close(_FAREWELL_S)
        with self._changed:
            self._is_closing = True
            if self._is_connected and self._loading is None:
                self._say(Kind.BYE, {"id": _BYE_ID})
            elif self._channel is not None:
                self._channel.abort()
            self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            # The run closes the connection when it has released the rank.
            self._thread.join(_FAREWELL_S)
            if self._channel is not None:
                self._channel.abort()
            self._thread.join(_FAREWELL_S)

    # With the lock held, on either thread:

    def _wait(self, is_over: Callable[[], bool], wanted: str) -> None:
        """Let the loop wait; nothing else has a deadline."""
        began, watchdog = time.monotonic(), Watchdog(self._warn_s)
        while not is_over():
            if self._error is not None:
                raise self._error
            if self._is_closing:
                raise ClosedError(f"the client of rank {self._rank} was closed while it waited {wanted}")
            waited_s = time.monotonic() - began
            if waited_s >= self._deadline_s:
                raise DeadlineError(
                    f"{self._waiting(self._deadline_s, wanted)}: see what became of that, or raise deadline_s"
                )
            if watchdog.is_due(waited_s):
                _LOG.warning("%s; it gives up after %g s", self._waiting(waited_s, wanted), self._deadline_s)
            self._changed.wait(min(self._deadline_s - waited_s, watchdog.left_s(waited_s)))

    def _waiting(self, waited_s: float, wanted: str) -> str:
        of_run = "" if self._run is None else f" of run {self._run}"
        return f"rank {self._rank} has waited {waited_s:.3g} s {wanted}{of_run}; it waits for {self._waits_for}"

    def _tell(self) -> None:
        """Ask for the next step if there is room, else say that the loop went on."""
        if not self._is_connected or self._loading is not None or self._is_closing:
            return
        if request := self._prefetch.request():
            self._heard_at = time.monotonic()
            self._say(Kind.TAKE, {**request, "wait_s": _WAIT_S})
        elif notice := self._prefetch.notice():
            self._say(Kind.TAKEN, notice)

    def _say_load(self) -> None:
        if self._loading is not None and self._is_connected:
            # The run drops a request that is open for a load.
            self._prefetch.forget_request()
            self._heard_at = time.monotonic()
            self._say(Kind.LOAD, {"id": _LOAD_ID, **asdict(self._loading.load)})

    def _say(self, kind: Kind, header: dict[str, Any]) -> None:
        assert self._channel is not None
        try:
            self._channel.send(kind, header)
        except OSError:
            self._channel.abort()  # The receiving thread learns so, and connects again.

    # On the receiving thread:

    def _receive(self) -> None:
        try:
            lost: OSError | None = None
            while (channel := self._reach(lost)) is not None:
                try:
                    self._listen(channel)
                except OSError as error:
                    lost = error
                finally:
                    self._leave(channel)
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _reach(self, lost: OSError | None) -> Channel | None:
        """Return a connection on which the rank is welcome, however often it takes; None when it is to be closed."""
        pause_s, longest_s = _PAUSES_S
        where, has_warned = self._address.partition("?")[0], False
        reach = Reach(
            self._address,
            self._rank,
            client=self._client,
            adopt=self._adopt,
            waits_for=self._note_waits_for,
            certificates=self._certificates,
        )
        while True:
            with self._changed:
                if lost is not None and not self._is_closing:
                    self._waits_for = f"a connection to {reach.failures or f'{where} ({reason(lost)})'}"
                    self._changed.wait(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, longest_s)
                if self._is_closing:
                    return None
                stated = self._stated()
            try:
                channel, welcome = reach.attempt(stated)
            except OSError as error:
                if not has_warned and not self._is_closing:
                    has_warned = True
                    _LOG.warning("rank %d cannot reach %s (%s); it tries again", self._rank, where, reason(error))
                lost = error
                continue
            with self._changed:
                self._arrive(channel, welcome, stated)
            return channel

    def _note_waits_for(self, waits_for: str) -> None:
        with self._changed:
            self._waits_for = waits_for

    def _arrive(self, channel: Channel, welcome: Welcome, stated: Stated | None) -> None:
        """Go on as the run says."""
        moved = Moved(generation=welcome.generation, first_step=welcome.first_step, position=welcome.position)
        has_moved = self._prefetch.moved(moved)
        _LOG.log(*arrival(
            self._rank, channel.run, welcome, stated, step=self._prefetch.next_step, has_moved=has_moved
        ))  # fmt: skip
        self._run, self._session = channel.run, welcome.session
        self._num_loads = max(self._num_loads, welcome.num_loads)
        if self._follows_deadline:
            self._deadline_s = welcome.deadline_s
        self._mesh = Mesh(tuple(welcome.mesh.items()))
        self._is_connected, self._waits_for = True, "the run to answer"
        self._say_load()
        self._tell()
        self._changed.notify_all()

    def _stated(self) -> Stated | None:
        if self._run is None:
            return None
        return Stated(
            run=self._run,
            generation=self._prefetch.generation,
            next_step=self._prefetch.next_step,
            num_loads=self._num_loads,
            position=self._prefetch.position,
        )

    def _adopt(self, channel: Channel) -> None:
        """Make a connection known to `disconnect`, which may cut it."""
        with self._changed:
            if self._is_closing:
                raise ConnectionAbortedError("the rank is being released")
            self._channel = channel

    def _leave(self, channel: Channel) -> None:
        with self._changed:
            self._is_connected = False
            self._prefetch.forget_request()
            channel.close()

    def _listen(self, channel: Channel) -> None:
        while True:
            frame = channel.receive(timeout_s=_LOOK_S)
            if frame is not None:
                # Looked through before the lock is taken: the loop need not wait for it.
                batch = decode(frame.header, frame.body) if frame.kind == Kind.BATCH else None
                with self._changed:
                    self._heard_at = time.monotonic()
                    self._heed(frame, batch)
                    self._tell()
                    self._changed.notify_all()
                continue
            with self._changed:
                silent_s = time.monotonic() - self._heard_at
                is_waiting = self._prefetch.is_asking or self._loading is not None
                if is_waiting and silent_s > _WAIT_S + _SILENCE_S:
                    raise TimeoutError(f"{channel.address} has not answered for {silent_s:.0f} s")

    def _heed(self, frame: Frame, batch: RankBatch | None) -> None:
        number = optional(frame.header, "id", int)
        if frame.kind == Kind.WORKING:
            self._waits_for = value(frame.header, "waits_for", str)
        elif number == _LOAD_ID:
            self._heed_load(frame)
        elif frame.kind == Kind.MOVED:
            self._heed_move(moved_of(frame.header), number)
        elif batch is not None and number is not None:
            self._prefetch.arrived(number, batch)
        elif frame.kind == Kind.ERROR and number is None:
            raise error_of(frame.header)
        elif frame.kind == Kind.ERROR and number is not None:
            self._prefetch.came_to(number, error_of(frame.header))
        elif frame.kind == Kind.ENDED and number is not None:
            self._prefetch.came_to(number, Ended(step=value(frame.header, "step", int)))
        elif frame.kind == Kind.NOT_YET and number is not None:
            self._waits_for = value(frame.header, "waits_for", str)
            self._prefetch.came_to(number, None)
        else:
            raise EngineError(f"the run sent a message of kind {frame.kind}; use the same release of msd on both sides")

    def _heed_move(self, moved: Moved, number: int | None) -> None:
        has_moved = self._prefetch.moved(moved)
        self._say(Kind.MOVED_SEEN, {"generation": self._prefetch.generation})
        if not has_moved and number is not None:
            self._prefetch.came_to(number, EngineError(
                f"rank {self._rank} is in generation {self._prefetch.generation} and the run says that it has moved to "
                f"{moved.generation}, which is no later one; it was started anew: connect again and load a state"
            ))  # fmt: skip

    def _heed_load(self, frame: Frame) -> None:
        if self._loading is None:
            return
        if frame.kind == Kind.ERROR:
            self._loading.error = error_of(frame.header)
        else:
            self._prefetch.restart(moved_of(frame.header))
            self._num_loads = self._loading.load.number
        self._loading.is_done = True
