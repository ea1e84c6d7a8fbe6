"""Steering a run from another process: by its address, with the token that ranks show, too."""

from typing import Any

from msd.client.link.asking import ask_run
from msd.client.link.certificates import Certificates
from msd.core.journal import Edit, edits_to_state
from msd.runtime.edits import TakesEdits


class RunControl(TakesEdits):
    """A run that somebody else started: the edits of its engine, and what there is to know of it.

    Each call is a connection of its own: nothing is held between two.
    """

    def __init__(self, address: str, *, deadline_s: float = 30.0, certificates: Certificates | None = None) -> None:
        """Get ready; nothing is dialled.

        Args:
            address: Of the run, as `msd.connect` takes it.
            deadline_s: For how long a run that does not answer is tried again.
            certificates: Of this side: with them nothing but TLS is spoken on TCP; None speaks none.
        """
        self.address = address
        self._deadline_s = deadline_s
        self._certificates = certificates

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far; see `Engine.stats`."""
        found: dict[str, Any] = self._ask("stats")
        return found

    def which(self, step: int, rank: int | None = None) -> list[dict[str, Any]]:
        """Return where each document of a step came from and where it goes; see `Engine.which`."""
        found: list[dict[str, Any]] = self._ask("which", step=step, rank=rank)
        return found

    def save(self) -> str:
        """Save where the slowest rank stands, and return the name of the snapshot; see `Engine.save`."""
        name: str = self._ask("save")
        return name

    def _edits(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("edits")
        return found

    def _edit(self, edit: Edit, *, move_late: bool) -> int:
        (entry,) = edits_to_state([edit])
        step: int = self._ask("edit", entry=entry, move_late=move_late)
        return step

    def _ask(self, method: str, **arguments: Any) -> Any:
        return ask_run(self.address, method, arguments, deadline_s=self._deadline_s, certificates=self._certificates)
