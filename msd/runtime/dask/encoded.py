"""Batches of a constructor as they are sent: one encoding for all the ranks that hold the same."""

import json
import time
from collections.abc import Hashable
from dataclasses import replace

from msd.client.link.batches import Encoded, encode
from msd.constructor.shelf import Shelf
from msd.core.state import StateDict, canonical_json
from msd.runtime.state import run_state


class EncodedBatches:
    """Encodes what a shelf holds, each batch once. For one thread at a time."""

    def __init__(self, shelf: Shelf, identity: StateDict) -> None:
        """Encode from `shelf`; `identity` is what order and content depend on, for states."""
        self._shelf = shelf
        self._identity = identity
        self._encoded: dict[tuple[int, Hashable], Encoded] = {}
        self._progress = self._state_after = ""
        self.num_batches, self.seconds = 0, 0.0
        """Batches that were assembled and encoded, and what that took."""

    def state(self, progress: StateDict) -> str:
        """Return a position as the JSON of a state."""
        return canonical_json(run_state(progress, self._identity))

    def batch(self, generation: int, step: int, rank: int) -> Encoded | None:
        """Return a rank's batch, if it is there."""
        key = (step, self._shelf.share_key(step, rank))
        if key not in self._encoded:
            began_s = time.perf_counter()
            batch = self._shelf.batch(generation, step, rank)
            if batch is None:
                return None
            # All ranks stand at the same position after a step: with hundreds of sources it costs to write it down.
            if batch.progress != self._progress:
                self._progress, self._state_after = batch.progress, self.state(json.loads(batch.progress))
            self._encoded[key] = encode(replace(batch, progress=self._state_after))
            self.num_batches += 1
            self.seconds += time.perf_counter() - began_s
        return self._encoded[key]

    def drop(self, through: int) -> None:
        """Let go of the steps up to one."""
        self._encoded = {key: kept for key, kept in self._encoded.items() if key[0] > through}

    def clear(self) -> None:
        """Let go of all."""
        self._encoded.clear()
