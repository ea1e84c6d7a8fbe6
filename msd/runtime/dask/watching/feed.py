"""Hands the figures of a run to the scheduler's plugin, every two seconds. On the supervisor's loop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msd.errors import MsdError
from msd.runtime.dask.watching.view import Stats

_LOG = logging.getLogger("msd")
INTERVAL_S = 2.0


class Feed:
    """Of one run."""

    def __init__(
        self,
        run: str,
        stats: Callable[[], Awaitable[Stats]],
        scheduler: Callable[[], Any],
        *,
        seen: Callable[[Stats], None] | None = None,
        interval_s: float | None = None,
    ) -> None:
        """Get ready; `run` feeds.

        Args:
            run: Identity of the run.
            stats: Returns its figures.
            scheduler: Returns what calls the scheduler, at present.
            seen: Takes the figures of each look too.
            interval_s: Between two looks; None is `INTERVAL_S`.
        """
        self._run, self._stats, self._scheduler = run, stats, scheduler
        self._seen = seen
        self._interval_s = INTERVAL_S if interval_s is None else interval_s

    async def feed(self) -> None:
        """Feed for ever: a look that fails is left out, and the run goes on."""
        while True:
            try:
                stats = await self._stats()
                if self._seen is not None:
                    # It may write to a slow disk, and the supervisor's loop must not stand still.
                    await asyncio.to_thread(self._seen, stats)
                await self._scheduler().msd_report(run=self._run, stats=stats, at_s=time.time())
            except (MsdError, OSError, RuntimeError) as error:
                _LOG.debug("whoever watches is told nothing for now: %s", error)
            except Exception:
                # Watching is beside the run: whatever is wrong with it ends nothing.
                _LOG.debug("whoever watches is told nothing for now", exc_info=True)
            await asyncio.sleep(self._interval_s)

    async def end(self) -> None:
        """Have the run shown no more."""
        await self._scheduler().msd_end(run=self._run)
