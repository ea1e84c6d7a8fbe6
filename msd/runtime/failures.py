"""Rows that failed are told of: each in its quarantine file, the first of each source in the log."""

import logging
from collections.abc import Iterable, Mapping

from msd.core.sample import Failure
from msd.loader.config import SourceConfig
from msd.loader.quarantine import Quarantine

_log = logging.getLogger("msd")


class FailureNotes:
    """Where an engine notes failed rows as its loaders meet them; whoever hosts the planner has one."""

    def __init__(self, sources: Mapping[str, SourceConfig]) -> None:
        """Open the quarantine files, all or none.

        Args:
            sources: Of the configuration.

        Raises:
            ConfigError: If a quarantine file cannot be written.
        """
        self._quarantines: dict[str, Quarantine] = {}
        try:
            for name, source in sources.items():
                if source.on_error.quarantine is not None:
                    self._quarantines[name] = Quarantine(source.on_error.quarantine, source=name)
        except BaseException:
            for quarantine in self._quarantines.values():
                quarantine.abandon()
            raise
        # Under `policy: raise` the first failed row ends the run with the same words.
        self._silent = {name for name, source in sources.items() if source.on_error.policy == "skip"}

    def note(self, source: str, failures: Iterable[Failure]) -> None:
        """List the rows that failed, and warn in the log `msd` at the first of each source."""
        failures = tuple(failures)
        if not failures:
            return
        quarantine = self._quarantines.get(source)
        if quarantine is not None:
            quarantine.write(failures)
        if source in self._silent:
            self._silent.remove(source)
            first = failures[0]
            _log.warning(
                "source %r: %s row %d failed and is skipped: %s; further rows are counted in "
                "engine.stats()['sources'][%r]['failed_by_reason'] and %s",
                source,
                first.shard,
                first.row,
                first.reason,
                source,
                f"listed in {quarantine.path}"
                if quarantine is not None
                else f"listed in a file if you set sources.{source}.on_error.quarantine",
            )

    def close(self) -> None:
        """Close the files."""
        for quarantine in self._quarantines.values():
            quarantine.close()
