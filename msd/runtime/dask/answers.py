"""What ranks of a constructor are answered: their batch, that the run moved or ended, or why it cannot go on."""

from msd.client.link.batches import Encoded
from msd.client.link.messages import Ended, Moved
from msd.constructor.shelf import Shelf
from msd.runtime.dask.encoded import EncodedBatches
from msd.runtime.dask.wire import Wire


class Answers:
    """Knows of one generation at a time. Whoever calls holds the constructor's condition."""

    def __init__(self, shelf: Shelf, encoded: EncodedBatches) -> None:
        """Answer from a shelf; `encoded` holds its batches as they are sent."""
        self.generation = 0
        self.error: Exception | None = None
        """Why nothing more comes; the first that was said."""
        self._shelf = shelf
        self._encoded = encoded
        self._first_step = 0
        self._position = "{}"
        self._refusals: dict[int, tuple[int, int, Exception]] = {}
        """By rank: (generation, session) in which it is answered with an error."""

    @property
    def moved(self) -> Moved:
        """Where the present generation begins."""
        return Moved(generation=self.generation, first_step=self._first_step, position=self._position)

    def rewind(self, order: Wire) -> None:
        """Begin another generation: what was held is of no use in it."""
        self._shelf.rewind(order["generation"])
        if order["generation"] > self.generation:
            self._encoded.clear()
        self.generation, self._first_step = order["generation"], order["first_step"]
        self._position = order["position"]

    def refuse(self, order: Wire) -> None:
        """Answer a rank with an error as long as it speaks in this generation and session."""
        self._refusals[order["rank"]] = (order["generation"], order["session"], order["error"])

    def fail(self, error: Exception) -> None:
        """Answer every rank with an error once what is held is gone; the first one stays."""
        self.error = self.error or error

    def check_running(self) -> None:
        """Raise the error for a rank that comes when there is nothing to come."""
        if self.error is not None and self._shelf.end is None:
            raise self.error.with_traceback(None)

    def of(self, rank: int, session: int, generation: int, step: int) -> Encoded | Moved | Ended | Exception | None:
        """Return what there is to say to a rank that asks for a step; None as long as it has to wait."""
        if generation > self.generation:
            # The rank heard of the move from the planner, which tells this constructor too.
            return self.error
        if generation < self.generation:
            return self.moved
        refusal = self._refusals.get(rank)
        if refusal is not None and refusal[:2] == (generation, session):
            return refusal[2]
        encoded = self._encoded.batch(self.generation, step, rank)
        if encoded is not None:
            return encoded
        if self.error is not None:
            return self.error
        return Ended(step=step) if self._shelf.end is not None and step >= self._shelf.end else None
