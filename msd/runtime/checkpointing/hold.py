"""The store of a run, held against others while the run lives."""

import logging
import threading
from collections.abc import Callable

from msd.checkpoint import Lease, open_store
from msd.config.pipeline import CheckpointConfig
from msd.errors import EngineError, LeaseError

_LOG = logging.getLogger("msd")


class StoreHold:
    """The store of a run, held against other runs until it is closed."""

    def __init__(self, config: CheckpointConfig, *, run: str, on_lost: Callable[[LeaseError], None]) -> None:
        """Take the store.

        Args:
            config: Of the checkpoint.
            run: Which takes it.
            on_lost: Called from another thread, once, if another run takes it over: this one must end.

        Raises:
            ConfigError: If the path means nothing.
            LeaseError: If another run holds it.
            EngineError: If it cannot be written.
        """
        self.store = open_store(config.path, keep=config.keep, storage_options=config.storage_options)
        self._lease = Lease(self.store.folder, run=run, lease_s=config.lease_s)
        left = self._lease.acquire(take_over=config.take_over)
        if left is not None:
            _LOG.info("checkpoint %s: taken over from run %s, which did not give it back", self.store.path, left.run)
        self.store.sweep()
        self._on_lost = on_lost
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"msd-lease-{run}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the store back. Closing twice is fine."""
        self._is_closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._lease.release()

    def _renew(self) -> None:
        has_warned = False
        while not self._is_closed.wait(self._lease.lease_s / 4):
            try:
                self._lease.renew()
                has_warned = False
            except LeaseError as error:
                self._on_lost(error)
                return
            except EngineError as error:
                if not has_warned:
                    has_warned = True
                    _LOG.warning("the lease could not be renewed and is tried again: %s", error)
