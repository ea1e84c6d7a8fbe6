"""A source without an end: its ledger, and who looks for what is new when rows are asked for that are not in it."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from msd.core.arrays import Int64Array
from msd.core.dotted import import_dotted
from msd.core.index import BlockTable, Shard
from msd.core.sample import RawSample
from msd.core.unbounded import Admitted
from msd.errors import ConfigError, StateError
from msd.sources.arrivals import (
    Arrivals,
    FilesThatAppear,
    LinesThatAppear,
    changed_lines,
    digest_of,
    format_of,
    grows,
    root_of,
)
from msd.sources.base import BadRow, BlockReader
from msd.sources.config import GROWING, ReaderConfig
from msd.sources.files import Opener, reading
from msd.sources.jsonl import parse_line
from msd.sources.ledger import Admission, Ledger, Takes
from msd.sources.lines import rows_of_block
from msd.sources.open import shard_format
from msd.sources.queue import RowsThatAreTaken, rows_reader
from msd.sources.shard import ShardIndex, ShardReader, block_table

MOST_AT_ONCE = 64
"""Admissions of one call: files without a row must not hold up whoever asks."""
SEEN_S = 2.0
"""What another host admitted is to be seen here within this time."""
CLOSE_S = 2.0
_KEPT_TABLES = 32


class Unending:
    """Admissions of one source, in one process. For any number of threads."""

    def __init__(
        self, name: str, config: ReaderConfig, *, consumes: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Name a ledger; nothing is read or written yet.

        Args:
            name: Of the source.
            config: Of the source.
            consumes: Take from a queue what its ledger lacks. False reads what was kept: a command that only shows
                something must take nothing.
            clock: Seconds that go only forward, for `poll_s`.

        Raises:
            ConfigError: If the class of a queue cannot be imported, or a path is that of one file that cannot grow.
        """
        assert config.spool is not None
        if config.format == "queue" and isinstance(config.cls, str):
            import_dotted(config.cls, name=f"sources.{name}.cls")
        self.name = name
        self.consumes = consumes
        self.spool = os.path.abspath(os.path.expanduser(config.spool))
        self.poll_s = config.poll_s
        self.takes: Takes = "queue"
        self._root = self.spool
        if config.format != "queue":
            assert isinstance(config.path, str)
            # Relative paths are those of the process that begins a run.
            path = os.path.abspath(os.path.expanduser(config.path))
            config = msgspec.structs.replace(config, path=path)
            self.takes, self._root = "lines" if grows(path) else "files", root_of(path)
            if self.takes == "files" and self._root == path and format_of(path) is not None:
                raise ConfigError(
                    f"sources.{name}: path {config.path!r} is one file that does not grow by lines; name the folder in "
                    f"which files appear, a glob, a file that ends in {', '.join(GROWING)}, or leave format out"
                )
        self.config = config
        self._clock = clock
        self._stand()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs."""
        kept = ("name", "config", "consumes", "spool", "poll_s", "takes", "_clock", "_root")
        return {key: self.__dict__[key] for key in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Stand in another process."""
        self.__dict__.update(state)
        self._stand()

    def _stand(self) -> None:
        self.ledger = Ledger(self.spool, source=self.name, takes=self.takes)
        self._arrivals: Arrivals | None = None
        self._looking = threading.Lock()
        self._tables: OrderedDict[int, Admitted] = OrderedDict()
        self._lock = threading.Lock()
        self._next_look = float("-inf")

    @property
    def num_rows(self) -> int:
        """Rows admitted, as far as this process has looked."""
        return self.ledger.num_rows

    def count(self) -> tuple[int, int]:
        """Return how many rows were admitted up to now, and in how many admissions; whoever did it."""
        self.ledger.refresh()
        return self.ledger.num_rows, len(self.ledger)

    @property
    def lack(self) -> str:
        """What is waited for, in words."""
        if self.takes == "queue" and not self.consumes:
            return "it is a queue, which only a run takes from"
        return "" if self._arrivals is None else self._arrivals.lack()

    def find(self, ordinal: int) -> Admitted | None:
        """Return the admission of a row, or None as long as there is none."""
        entry = self.ledger.find(ordinal)
        if entry is None:
            self.ledger.refresh()
            entry = self.ledger.find(ordinal)
        return None if entry is None else self.admitted(entry)

    def admit_to(self, end: int) -> int:
        """Admit what is new until so many rows are, and return how many are known; waits for nobody.

        Looks at most every `poll_s` once there was nothing to find; another thread that looks is not waited for.

        Raises:
            SourceError: If the ledger is damaged, or what it holds is no longer there.
        """
        if self.ledger.num_rows >= end:
            return self.ledger.num_rows
        self.ledger.refresh()
        if self.ledger.num_rows < end and self._looking.acquire(blocking=False):
            try:
                self._look(end)
            finally:
                self._looking.release()
        return self.ledger.num_rows

    def admitted(self, entry: Admission) -> Admitted:
        """Return an entry as a table of blocks."""
        with self._lock:
            found = self._tables.pop(entry.number, None)
            if found is None:
                found = Admitted(entry.number, entry.first, self._table(entry))
            self._tables[entry.number] = found
            while len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
            return found

    def expect(self, count: int, chain: str) -> None:
        """Refuse a ledger that a state does not stand in.

        Args:
            count: Admissions up to where it stands.
            chain: Their digest.

        Raises:
            StateError: Naming the difference.
            SourceError: If the ledger is damaged.
        """
        until, here = self._clock() + SEEN_S, self.ledger.chain_at(count)
        while here is None and self._clock() < until:
            # What another host admitted a moment ago may be seen here a little later.
            time.sleep(0.05)
            here = self.ledger.chain_at(count)
        if here == chain:
            return
        if here is None:
            found = f"the one in {self.spool} has {len(self.ledger)}"
        else:
            found = f"those of the one in {self.spool} are others ({here[:12]}, the state has {chain[:12]})"
        raise StateError(
            f"cannot resume: source {self.name!r} stands in the first {count} admissions of its ledger, and {found}; "
            "name the spool that the state was saved with, or bring its files back"
        )

    def open_reader(self, admitted: Admitted) -> BlockReader:
        """Return a reader of the blocks of one admission."""
        entry, blocks = self.ledger.entry(admitted.number), admitted.blocks
        if entry.format == "rows":
            return rows_reader(self.name, self.config, blocks)
        if entry.format == "lines":
            return _lines_reader(self.name, entry, blocks)
        return shard_format(entry.format)[1](self.name, self.config, blocks, Opener())

    def close(self) -> None:
        """Let go of a queue."""
        # A queue that hangs is left behind: whoever closes must come to an end.
        if not self._looking.acquire(timeout=CLOSE_S):
            return
        try:
            if self._arrivals is not None:
                self._arrivals.close()
            self._arrivals = None
        finally:
            self._looking.release()

    def _look(self, end: int) -> None:
        began_s = self._clock()
        if began_s < self._next_look or (self.takes == "queue" and not self.consumes):
            return
        if self._arrivals is None:
            self._arrivals = self._new_arrivals()
        for _ in range(MOST_AT_ONCE):
            if self.ledger.num_rows >= end:
                return
            offer = self._arrivals.next(self.ledger)
            if offer is None:
                # A folder of a million files is not listed without a pause.
                self._next_look = self._clock() + max(self.poll_s, 4 * (self._clock() - began_s))
                return
            entry = self.ledger.append(**offer)
            if entry is not None:
                self._arrivals.admitted(entry)

    def _new_arrivals(self) -> Arrivals:
        if self.takes == "queue":
            return RowsThatAreTaken(self.name, self.config, self.ledger.folder)
        return LinesThatAppear(self.config) if self.takes == "lines" else FilesThatAppear(self.config)

    def _table(self, entry: Admission) -> BlockTable:
        shard = Shard(
            name=entry.name,
            path=os.path.join(self._root, entry.name),
            nbytes=entry.nbytes,
            num_rows=entry.num_rows,
            version=entry.stamp,
        )
        table = block_table([(shard, ShardIndex.of(entry.blocks))])
        return replace(table, first_row_B=table.first_row_B + entry.first_row) if entry.first_row else table


def _lines_reader(source: str, entry: Admission, blocks: BlockTable) -> ShardReader:
    """Return a reader of lines of a file that grew since: each block is compared with what was taken."""
    path = blocks.shards[0].path

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        _, _, offset, nbytes = entry.blocks[block]
        with reading(path), open(path, "rb") as file:
            file.seek(offset)
            data = file.read(nbytes)
        if digest_of(data) != entry.digests[block]:
            raise changed_lines(path, offset + nbytes, f"bytes {offset} to {offset + nbytes} are others now")
        lines = rows_of_block(data)
        return [parse_line(lines[row]) for row in row_N.tolist()]

    return ShardReader(source, read, lambda: None)
