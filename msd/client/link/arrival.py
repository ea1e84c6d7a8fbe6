"""What is said to people when a rank arrives at a run. Pure."""

import logging

from msd.client.link.messages import Stated, Welcome


def arrival(
    rank: int, run: str, welcome: Welcome, stated: Stated | None, *, step: int, has_moved: bool
) -> tuple[int, str]:
    """Return the level of the log and the words: loud where a trainer that expects another step would skip data.

    Args:
        rank: That has arrived.
        run: That it is welcome in.
        welcome: Of that run.
        stated: Where the rank said that it stands; None for one that starts.
        step: That its loop gets next.
        has_moved: Whether the run is in a later generation than the rank was.
    """
    stands = f"step {step} of generation {welcome.generation}"
    origin = f", from {welcome.origin}" if welcome.origin else ""
    if stated is None:
        hint = "; if the trainer stands elsewhere, have it load the state that was saved with it" if origin else ""
        return logging.WARNING if origin else logging.INFO, f"rank {rank} starts at {stands} of run {run}{origin}{hint}"
    if stated.run != run:
        started = f"run {run}, which was started after run {stated.run} was gone"
        return logging.WARNING, f"rank {rank} goes on at {stands} with {started}{origin}"
    goes_on = f"the run has moved to {stands}" if has_moved else f"it goes on at {stands}"
    return logging.INFO, f"rank {rank} is connected again; {goes_on}"
