"""Rows from a queue: a class of the user's, called with the source's `options`.

It has `take(max_rows, timeout_s)`, which returns a list of rows, empty if none came in that time. What it may have
besides:

- `done()`: all that was taken so far is durable, and need not be delivered again.
- `position()` and `seek(position)`: where the next `take` begins, as a value that JSON holds. With them a row that was
  kept is never taken twice, whatever ends in between.
- `close()`.

Rows are kept as files in the spool before they are admitted, as MessagePack in a column of an Arrow file. A row is a
mapping, or a string, which becomes `{"text": string}`; another one is counted like a row that failed.
"""

import contextlib
import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import msgspec

from msd.core.arrays import Int64Array
from msd.core.dotted import import_dotted
from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.core.text import text_of
from msd.errors import SourceError, told
from msd.sources.arrivals import Offer
from msd.sources.base import BadRow, BlockReader
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener
from msd.sources.ledger import Admission, Ledger
from msd.sources.memory import row_of
from msd.sources.shard import ShardReader
from msd.sources.spool import create

_LOG = logging.getLogger("msd")
TAKE_ROWS = 1024
TAKE_S = 0.2
"""For so long a queue may be waited for at a time: a thread does it that others could use."""


class _Raised(Exception):
    """The queue raised, in words."""


class RowsThatAreTaken:
    """What a queue gives; each row is durable before it is admitted, and admitted before the queue may forget it."""

    def __init__(self, name: str, config: ReaderConfig, folder: Path) -> None:
        """Take nothing yet: the class is called at the first look.

        Args:
            name: Of the source, for errors.
            config: Its configuration.
            folder: The spool.
        """
        self._name = name
        self._config = config
        self._folder = folder
        self._made: Any = None
        self._label = ""
        self._kept: dict[str, Any] | None = None
        """What was kept and not admitted yet."""
        self._was_made = False
        self._trouble = ""
        """What the queue raised last, if nothing has come since."""
        self._stands_at = -1
        """The number of entries after which the queue goes on from where it stands."""

    def next(self, ledger: Ledger) -> Offer | None:
        """Return rows that were taken and kept; see `Arrivals`.

        A queue that raises has nothing for now: it is made anew at the next look, and what it raised is told.
        """
        try:
            offer = self._next(ledger)
        except _Raised as error:
            self._note(error)
            return None
        self._trouble = ""
        return offer

    def _next(self, ledger: Ledger) -> Offer | None:
        made = self._queue()
        if hasattr(made, "seek") and self._stands_at != len(ledger):
            # Others admitted what this consumer may have taken as well.
            self._drop_kept()
            last = ledger.last()
            if last is not None and last.position is not None:
                self._call("seek", last.position)
            self._stands_at = len(ledger)
        if self._kept is not None:
            return self._kept
        rows = self._call("take", TAKE_ROWS, TAKE_S)
        if not isinstance(rows, list | tuple):
            raise SourceError(
                f"sources.{self._name}: {self._label}.take returned a {type(rows).__name__}; return a list of rows"
            )
        if rows:
            position = self._call("position") if hasattr(made, "position") else None
            self._kept = self._keep(rows, position)
        return self._kept

    def admitted(self, entry: Admission) -> None:
        """Have the queue forget what was taken."""
        self._kept = None
        self._stands_at = entry.number + 1
        if hasattr(self._made, "done"):
            try:
                self._call("done")
            except _Raised as error:
                self._note(error)

    def lack(self) -> str:
        """Return what is waited for."""
        raised = f", which raised {self._trouble}" if self._trouble else ""
        return f"it waits for rows of {self._label or self._config.cls}{raised}"

    def close(self) -> None:
        """Let go of the queue. What was kept and not admitted it delivers again."""
        self._drop_kept()
        made, self._made, self._stands_at = self._made, None, -1
        close = getattr(made, "close", None)
        if callable(close):
            try:
                close()
            except Exception as error:
                _LOG.warning("sources.%s: closing %s: %s", self._name, self._label, told(error))

    def _note(self, error: "_Raised") -> None:
        """Begin anew with a queue that raised."""
        if str(error) != self._trouble:
            _LOG.warning("sources.%s: %s raised %s; it is made anew", self._name, self._label, error)
        self.close()
        self._trouble = str(error)

    def _queue(self) -> Any:
        if self._made is not None:
            return self._made
        given = self._config.cls
        target = import_dotted(given, name=f"sources.{self._name}.cls") if isinstance(given, str) else given
        self._label = (
            f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', type(target).__qualname__)}"
        )
        try:
            made = target(**self._config.options)
        except Exception as error:
            if self._was_made:
                raise _Raised(f"{told(error)} when it was made") from error
            raise SourceError(
                f"sources.{self._name}: {self._label} could not be made with options {self._config.options!r} "
                f"({type(error).__name__}: {text_of(error)}); correct `options` or the class"
            ) from error
        if not callable(getattr(made, "take", None)):
            raise SourceError(
                f"sources.{self._name}: {self._label} returned a {type(made).__name__} without "
                "take(max_rows, timeout_s); give it one"
            )
        if hasattr(made, "seek") != hasattr(made, "position"):
            raise SourceError(
                f"sources.{self._name}: {self._label} has one of seek and position; give it both, or neither"
            )
        self._made, self._was_made = made, True
        return made

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._made, method)(*arguments)
        except Exception as error:
            raise _Raised(f"{told(error)[:200]} in {method}") from error

    def _keep(self, rows: Any, position: Any) -> dict[str, Any]:
        """Write rows to the spool and return what admits them."""
        try:
            json.dumps(position, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SourceError(
                f"sources.{self._name}: {self._label}.position returned what JSON does not hold ({text_of(error)}); "
                "return numbers, strings, lists or mappings of them"
            ) from None
        content, blocks = rows_to_file(rows, self._config.block_bytes)
        name = f"rows-{uuid.uuid4().hex}.arrow"
        self._folder.mkdir(parents=True, exist_ok=True)
        create(self._folder, name, content)
        return {"name": name, "format": "rows", "nbytes": len(content), "blocks": blocks, "position": position}

    def _drop_kept(self) -> None:
        if self._kept is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._folder / self._kept["name"])
        self._kept = None


def rows_to_file(rows: Any, block_bytes: int) -> tuple[bytes, list[tuple[int, int, int, int]]]:
    """Return rows as an Arrow file, one record batch a block, and its (unit, rows, batch, bytes)."""
    import pyarrow as pa

    encoded = [_encoded(row, f"row {number} of a take") for number, row in enumerate(rows)]
    groups: list[list[tuple[bytes | None, str | None]]] = [[]]
    nbytes = 0
    for one in encoded:
        size = len(one[0] or one[1] or "")
        if groups[-1] and nbytes + size > block_bytes:
            groups.append([])
            nbytes = 0
        groups[-1].append(one)
        nbytes += size
    schema = pa.schema([("row", pa.binary()), ("bad", pa.string())])
    sink = pa.BufferOutputStream()
    blocks = []
    with pa.ipc.new_file(sink, schema) as writer:
        for number, group in enumerate(groups):
            columns = [
                pa.array(column, kind) for column, kind in zip(zip(*group, strict=True), schema.types, strict=True)
            ]
            batch = pa.record_batch(columns, schema=schema)
            writer.write_batch(batch)
            blocks.append((number, len(group), number, max(1, batch.nbytes)))
    return sink.getvalue().to_pybytes(), blocks


def rows_reader(name: str, config: ReaderConfig, blocks: BlockTable) -> ShardReader:
    """Return a reader of what was kept."""
    from msd.sources import arrow

    inner: BlockReader = arrow.make_reader(name, ReaderConfig(path=config.spool), blocks, Opener())

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        return [row if isinstance(row, BadRow) else _decoded(row) for row in inner.read_block(block, row_N)]

    return ShardReader(name, read, inner.close)


def _encoded(row: Any, where: str) -> tuple[bytes | None, str | None]:
    found = row_of(row, where)
    if isinstance(found, BadRow):
        return None, found.reason
    try:
        return msgspec.msgpack.encode(found), None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return None, f"{where} holds what cannot be kept: {text_of(error)[:200]}"


def _decoded(row: RawSample) -> RawSample | BadRow:
    if row["row"] is None:
        return BadRow(row["bad"])
    found: RawSample = msgspec.msgpack.decode(row["row"])
    return found
