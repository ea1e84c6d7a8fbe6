"""One question to a run, on a connection of its own: by its address, with the token that ranks show."""

import time
from typing import Any

from msd.client.link.address import resolve
from msd.client.link.certificates import Certificates
from msd.client.link.channel import Channel
from msd.client.link.frames import Kind
from msd.errors import DeadlineError

_PAUSE_S = 0.2


def ask_run(
    address: str,
    method: str,
    arguments: dict[str, Any],
    *,
    deadline_s: float,
    certificates: Certificates | None = None,
) -> Any:
    """Return what a run answers; see `msd.runtime.control`. Nothing is held between two questions.

    Args:
        address: As `msd.connect` takes it.
        method: What is asked.
        arguments: JSON-able.
        deadline_s: For how long a run that does not answer is tried again.
        certificates: Of this side: with them nothing but TLS is spoken on TCP; None speaks none.

    Raises:
        DeadlineError: If it cannot be reached.
        MsdError: What it raised.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            channel = Channel(resolve(address), certificates)
            try:
                channel.open()
                answer = channel.ask(Kind.CONTROL, {"method": method, "arguments": arguments})
                return answer.header["answer"]
            finally:
                channel.close()
        except OSError as error:
            if time.monotonic() > deadline:
                where = address.partition("?")[0]
                raise DeadlineError(
                    f"no run answered at {where} within {deadline_s:g} s ({error.strerror or error}); is it under way, "
                    "and this its present address?"
                ) from None
            time.sleep(_PAUSE_S)
