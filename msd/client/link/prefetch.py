"""What a rank has fetched ahead, and what it asks for next. Pure: no I/O, no clock, no threads."""

from collections import deque
from typing import Any

from msd.client.link.messages import Ended, Moved
from msd.core.batch import RankBatch
from msd.errors import EngineError, MsdError


class Prefetch:
    """Steps of one rank, in order: at most `depth` wait for the training loop, and one more is asked for.

    A step counts as taken when the loop asks for the one after it, not when it is fetched.
    """

    def __init__(self, *, depth: int) -> None:
        """Hold nothing, in no generation: `moved` begins."""
        self.generation = -1
        self.to_fetch = 0
        """The step that is fetched next."""
        self.next_step = 0
        """That the loop asks for next."""
        self.waited_s = 0.0
        """Seconds that the loop has waited for steps, all together."""
        self.position = ""
        """After the last batch handed out, and so before `next_step`, as JSON."""
        self._depth = depth
        self._waiting: deque[RankBatch] = deque()
        self._outcome: MsdError | Ended | None = None
        """What the last request came to, if not to a batch; asked again once the loop knows."""
        self._asked: int | None = None
        self._num_asked = 0
        self._handed_out: int | None = None
        self._taken_through = -1
        self._told_through = -1

    def moved(self, moved: Moved) -> bool:
        """Follow the run into a later generation; return whether it is one."""
        if moved.generation <= self.generation:
            return False
        self.restart(moved)
        return True

    def restart(self, moved: Moved) -> None:
        """Drop what is held and stand at the first step of a generation, also of the present one."""
        self.generation, self.position = moved.generation, moved.position
        self.next_step = self.to_fetch = moved.first_step
        self._waiting.clear()
        self._outcome = self._asked = self._handed_out = None
        self._taken_through = self._told_through = moved.first_step - 1

    def asks(self) -> None:
        """Note that the loop asks for a batch: it is done with the one before."""
        if self._handed_out is not None:
            self._taken_through = max(self._taken_through, self._handed_out)

    @property
    def is_ready(self) -> bool:
        """Whether there is something for the loop: a batch, the end, or an error."""
        return bool(self._waiting) or self._outcome is not None

    @property
    def num_held(self) -> int:
        """Steps that wait for the loop."""
        return len(self._waiting)

    def hand_out(self) -> RankBatch | None:
        """Return the next batch for the loop, or None at the end.

        Raises:
            MsdError: If the request for it failed.
        """
        if self._waiting:
            batch = self._waiting.popleft()
            self._handed_out, self.next_step, self.position = batch.step, batch.step + 1, batch.progress
            return batch
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, MsdError):
            raise outcome
        return None

    @property
    def is_asking(self) -> bool:
        """Whether a request is open."""
        return self._asked is not None

    def request(self) -> dict[str, Any] | None:
        """Return the request to send now, if any; it is open from here on."""
        if self._asked is not None or self._outcome is not None or len(self._waiting) >= self._depth:
            return None
        self._num_asked += 1
        self._asked = self._num_asked
        return {"id": self._asked, "step": self.to_fetch, **self._taken()}

    def notice(self) -> dict[str, Any] | None:
        """Return what to say of steps taken while a request is open, if there is news."""
        return self._taken() if self._told_through < self._taken_through else None

    def is_open(self, number: int) -> bool:
        """Return whether an answer to request `number` is still of use."""
        return number == self._asked

    def arrived(self, number: int, batch: RankBatch) -> None:
        """Keep the batch that answers a request."""
        if not self.is_open(number):
            return
        self._asked = None
        if batch.step != self.to_fetch:
            self._outcome = EngineError(f"rank {batch.rank} asked for step {self.to_fetch} and got step {batch.step}")
            return
        self.to_fetch += 1
        self._waiting.append(batch)

    def came_to(self, number: int, outcome: MsdError | Ended | None) -> None:
        """Note that a request came to an error, to the end, or to nothing yet."""
        if self.is_open(number):
            self._asked, self._outcome = None, outcome

    def forget_request(self) -> None:
        """Note that the open request will not be answered; what is held stays good."""
        self._asked = None
        self._told_through = -1

    def _taken(self) -> dict[str, Any]:
        self._told_through = self._taken_through
        return {"generation": self.generation, "taken_through": self._taken_through, "waited_s": self.waited_s}
