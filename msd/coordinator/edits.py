"""The journal of a generation: an edit takes effect only once it is durable, from a step on that nobody has planned."""

from collections.abc import Iterable

from msd.coordinator.commands import Journal
from msd.core.journal import Edit, Report


class Edits:
    """Bookkeeping of edits: those that are being made durable, and those that are."""

    def __init__(self) -> None:
        """Begin with none."""
        self.durable: list[Edit] = []
        """Of this generation, in order."""
        self.num_forgotten = 0
        """Reports that were durable and that no position needs any more."""
        self._asked: dict[int, Edit] = {}
        self._own: set[int] = set()
        self._number = 0

    @property
    def all(self) -> tuple[Edit, ...]:
        """Those that are durable, and those that are about to be."""
        return (*self.durable, *self._asked.values())

    @property
    def waiting(self) -> tuple[Edit, ...]:
        """Those that are about to be durable."""
        return tuple(self._asked.values())

    def begin(self, durable: Iterable[Edit] = (), *, num_forgotten: int = 0) -> None:
        """Begin a generation: edits that were being made durable are void with the steps they spoke of."""
        self.durable, self.num_forgotten = list(durable), num_forgotten
        self._asked.clear()
        self._own.clear()

    def ask(self, edit: Edit, *, is_own: bool) -> Journal:
        """Return what makes an edit durable.

        Args:
            edit: With the step at which it is noted.
            is_own: Whether the run itself wants it, so that it cannot go on without.
        """
        self._number += 1
        self._asked[self._number] = edit
        if is_own:
            self._own.add(self._number)
        return Journal(self._number, edit)

    def take(self, through: int) -> list[Edit]:
        """Note that edits are durable up to a number; return those that take effect now, in order."""
        numbers = [number for number in self._asked if number <= through]
        taken = [self._asked.pop(number) for number in numbers]
        self.durable += taken
        self._own.difference_update(numbers)
        return taken

    def drop(self, number: int) -> Edit | None:
        """Note that an edit could not be made durable; return it if the run cannot go on without."""
        edit = self._asked.pop(number, None)
        return edit if number in self._own else None

    def holds(self, step: int) -> bool:
        """Return whether a step must not be planned yet: an edit that its position tells of is not durable."""
        return any(edit.noted_at <= step for edit in self._asked.values())

    @property
    def losses(self) -> dict[str, float]:
        """The newest of each source that durable reports say."""
        reports = (edit.losses for edit in self.durable if isinstance(edit, Report))
        return {source: loss for losses in reports for source, loss in losses.items()}

    def reports_before(self, step: int) -> int:
        """Return how many durable reports every position before `step` or a later one tells of."""
        return sum(isinstance(edit, Report) and edit.noted_at < step for edit in self.durable)

    def forget_reports(self, step: int) -> None:
        """Forget the durable reports that every position before `step` or a later one tells of."""
        kept = [edit for edit in self.durable if not (isinstance(edit, Report) and edit.noted_at < step)]
        self.num_forgotten += len(self.durable) - len(kept)
        self.durable = kept

    def noted_from(self, step: int) -> list[Edit]:
        """Return the durable edits that a position before `step` does not tell of."""
        return [edit for edit in self.durable if edit.noted_at >= step]
