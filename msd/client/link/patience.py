"""Handler calls that may take long, on the side of the run: the rank is told all the while that they are at work.

A rank takes a run that says nothing for lost within seconds. While a planner is replaced, hello and load take longer
than that, and so may the first plan of a large run.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from msd.client.link.messages import NotYet

_T = TypeVar("_T")

SOON_S = 10.0
"""What is not there yet is asked for again for so long before the rank is told to come again."""
_AGAIN_S = 0.1
_WORKING_S = 0.5


class Asking(Generic[_T]):
    """One question to a handler, asked again where the answer is `NotYet`."""

    def __init__(self, ask: Callable[[], _T | NotYet], *, wait_s: float = SOON_S) -> None:
        """Get ready to ask for at most `wait_s`; a call that takes longer is waited for."""
        self.waits_for = ""
        """What the handler waits for, as far as it has said so."""
        self._ask = ask
        self._wait_s = wait_s
        self._is_unwanted = threading.Event()

    def give_up(self) -> None:
        """Ask no more: nobody waits for the answer. From any thread."""
        self._is_unwanted.set()

    def patiently(self, working: Callable[[str], None]) -> _T | NotYet:
        """Return the answer, however long it takes, and say all the while what is waited for.

        If that cannot be said the rank is gone. The call is waited for all the same: what it did must be known.
        """
        answers: list[_T | NotYet] = []
        errors: list[Exception] = []
        thread = threading.Thread(target=self._note, args=(answers, errors), name="msd-link-asking", daemon=True)
        thread.start()
        try:
            while not self._is_unwanted.is_set():
                thread.join(_WORKING_S)
                if not thread.is_alive():
                    break
                working(self.waits_for)
        except OSError:
            self.give_up()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    def _note(self, answers: list[_T | NotYet], errors: list[Exception]) -> None:
        try:
            answers.append(self._answer())
        except Exception as error:
            errors.append(error)

    def _answer(self) -> _T | NotYet:
        until = time.monotonic() + self._wait_s
        while isinstance(answer := self._ask(), NotYet):
            self.waits_for = answer.waits_for
            if time.monotonic() >= until or self._is_unwanted.wait(_AGAIN_S):
                break
        return answer
