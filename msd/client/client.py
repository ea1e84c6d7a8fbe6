"""One rank's side of a run: iterate, save, load, close."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol

from msd.core.batch import RankBatch
from msd.core.checks import losses_of, whole_number
from msd.core.mesh import Mesh
from msd.core.state import StateDict, unwrapped
from msd.errors import ClosedError, StateError


class BatchTransport(Protocol):
    """How a client reaches the run: in the same process, or over a link."""

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh of the run."""
        ...

    def connect(self, rank: int) -> int:
        """Connect a rank and return the session that its later calls carry; an older session of the rank ends.

        Raises:
            ConfigError: If the rank lies outside the mesh.
        """
        ...

    def take(self, rank: int, session: int) -> RankBatch | None:
        """Return the next batch of a rank, or None when the run has ended."""
        ...

    def position(self, rank: int, session: int) -> str:
        """Return the run's position after the rank's last batch, as JSON."""
        ...

    def stands(self, rank: int, session: int) -> tuple[int, int]:
        """Return the run's generation and the step that the rank gets next."""
        ...

    def load(self, rank: int, session: int, state: StateDict, *, force: bool = False) -> None:
        """Move the run to a saved position; see `RankClient.load_state_dict`."""
        ...

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        """Say what training sees of the sources; see `RankClient.report`."""
        ...

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank."""
        ...


class RankClient:
    """Iterates the batches of one rank, one `RankBatch` per optimizer step.

    Iterating again goes on where the client stands. Use it as a context manager, or call `close()`.
    """

    def __init__(self, transport: BatchTransport, *, rank: int) -> None:
        """Connect `rank` through `transport`.

        Raises:
            ConfigError: If the rank is no integer, or lies outside the mesh.
        """
        self.rank = whole_number(rank, name="rank")
        self._transport = transport
        self._session = transport.connect(self.rank)
        self._is_closed = False
        self._waited_s = 0.0
        self._metrics: Callable[[], dict[str, float]] = dict

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh of the run."""
        return self._transport.mesh

    @property
    def next_step(self) -> int:
        """The step of the batch that comes next, if the run does not end before it or is moved."""
        self._check_open()
        return self._transport.stands(self.rank, self._session)[1]

    @property
    def generation(self) -> int:
        """How often the run was moved by loads of its ranks, as far as this one knows."""
        self._check_open()
        return self._transport.stands(self.rank, self._session)[0]

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited in `next`, all together."""
        return self._waited_s

    def __iter__(self) -> Iterator[RankBatch]:
        return self

    def __next__(self) -> RankBatch:
        self._check_open()
        began_s = time.perf_counter()
        batch = self._transport.take(self.rank, self._session)
        wait_s = time.perf_counter() - began_s
        self._waited_s += wait_s
        if batch is None:
            raise StopIteration
        # Only what it takes is kept: the arrays belong to whoever trains.
        self._metrics = partial(
            _metrics, batch.step, batch.sample_ids, batch.num_valid_tokens, batch.global_num_valid_tokens, wait_s
        )
        return batch

    def metrics(self) -> dict[str, float]:
        """Return figures of the last batch for an experiment tracker, by name; none before the first.

        They concern this rank: `msd/step`, `msd/wait_s` (seconds that the loop waited for it), `msd/waited_s` (for
        all so far), `msd/documents` and `msd/documents/SOURCE` (pieces of a cut document count each),
        `msd/valid_tokens` (labelled positions), and `msd/global_valid_tokens`, those of the whole step.
        """
        found = self._metrics()
        return {**found, "msd/waited_s": self._waited_s} if found else {}

    def state_dict(self) -> StateDict:
        """Return the position after the last batch handed out: JSON-able, the same on every rank, legal at any time."""
        self._check_open()
        state: StateDict = json.loads(self._transport.position(self.rank, self._session))
        return state

    def load_state_dict(self, state: StateDict, force: bool = False) -> None:
        """Go on from a saved position.

        The n-th load of any rank moves the whole run (generation n); the n-th load of the others joins it, and a
        rank that does not load follows.

        Args:
            state: As `state_dict()` of a client or of `msd.torch.DataLoader` returned it.
            force: Go on in spite of differences in what samples are, as far as that has a meaning; they are logged.

        Raises:
            StateError: If the state belongs to another run, or differs from what another rank loaded.
        """
        self._check_open()
        state = unwrapped(state)
        if not isinstance(state, dict):
            raise StateError(f"a state is the dictionary that state_dict() returned, got {type(state).__name__}")
        self._transport.load(self.rank, self._session, state, force=force)

    def report(self, losses: Mapping[str, float]) -> None:
        """Say what training sees of the sources, for `mixture.feedback`; the loop does not wait for it.

        The values are the newest from the first step on that nobody has planned, a few steps ahead, and are journalled
        there. One rank says what all of them saw: of two that report at once, the later one counts. Reports that wait
        for the run become one.

        Args:
            losses: By source, finite numbers; sources of which nothing is known are left out.

        Raises:
            ConfigError: If `losses` is no such mapping, or the run refused a report before: it has no feedback, or no
                such source.
            MsdError: If the run could not be reached, or could not keep a report that was made before.
        """
        self._check_open()
        self._transport.say_losses(self.rank, self._session, losses_of(losses))

    def close(self) -> None:
        """Release the rank. Closing twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.disconnect(self.rank, self._session)

    def __enter__(self) -> "RankClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the client of rank {self.rank} is closed; make another with engine.client({self.rank})")


def _metrics(
    step: int, sample_ids: Sequence[tuple[str, int, int]], num_valid: int, global_num_valid: int, wait_s: float
) -> dict[str, float]:
    of_source = Counter(source for source, _, _ in sample_ids)
    return {
        "msd/step": step,
        "msd/wait_s": wait_s,
        "msd/documents": len(sample_ids),
        "msd/valid_tokens": num_valid,
        "msd/global_valid_tokens": global_num_valid,
        **{f"msd/documents/{source}": count for source, count in sorted(of_source.items())},
    }
