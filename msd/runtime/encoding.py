"""How a state is written: what concerns the whole run as it is, what there is of every source as packed columns.

A run may have a thousand sources, and 64 bytes of a state are meant for each. Packed text is JSON of columns,
compressed (zlib) and written in base 85; `msd state show` prints what it says.
"""

import base64
import zlib
from collections.abc import Iterable

from msd.core.state import StateDict

_MAX_BYTES = 1 << 28
_SOURCES = "sources."
_ABSENT = ""
"""In a column, for an entry without the field; no field has this value."""


def packed(text: str) -> str:
    """Return ASCII text made short."""
    return base64.b85encode(zlib.compress(text.encode("ascii"), 6)).decode()


def unpacked(text: str) -> str:
    """Return what `packed` was given.

    Raises:
        ValueError: If it is no such text.
    """
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(base64.b85decode(text), _MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not reader.eof or reader.unused_data:
        raise ValueError("it was cut off")
    return content.decode("ascii")


def split_identity(identity: StateDict) -> tuple[StateDict, StateDict]:
    """Return settings of the run, and the parts of its sources as columns: name first, then a column for each part."""
    settings = {part: value for part, value in identity.items() if not part.startswith(_SOURCES)}
    by_source: dict[str, StateDict] = {}
    for part, value in identity.items():
        if part.startswith(_SOURCES):
            name, _, what = part.removeprefix(_SOURCES).rpartition(".")
            by_source.setdefault(name, {})[what] = value
    return settings, {"names": list(by_source), **to_columns(by_source.values())}


def joined_identity(settings: StateDict, columns: StateDict) -> StateDict:
    """Return what `split_identity` was given."""
    columns = dict(columns)
    names = columns.pop("names")
    parts = dict(settings)
    for name, entry in zip(names, from_columns(columns, len(names)), strict=True):
        parts |= {f"{_SOURCES}{name}.{what}": value for what, value in entry.items()}
    return parts


def pack_progress(progress: StateDict) -> StateDict:
    """Return a planner's progress with its entries by source and its waiting samples as columns."""
    sources: dict[str, StateDict] = progress["sources"]
    carry: list[StateDict] = progress["carry"]
    names = list(sources)
    place = {name: number for number, name in enumerate(names)}
    waiting = [{**piece, "source": place[piece["source"]]} for piece in carry]
    return {
        **progress,
        "sources": {"names": names, **to_columns(sources.values())},
        "carry": {"count": len(carry), **to_columns(waiting)},
    }


def unpack_progress(written: StateDict) -> StateDict:
    """Return what `pack_progress` was given."""
    columns, waiting = dict(written["sources"]), dict(written["carry"])
    names, count = columns.pop("names"), waiting.pop("count")
    return {
        **written,
        "sources": dict(zip(names, from_columns(columns, len(names)), strict=True)),
        "carry": [{**piece, "source": names[piece["source"]]} for piece in from_columns(waiting, count)],
    }


def to_columns(entries: Iterable[StateDict]) -> StateDict:
    """Return dictionaries as one list for each field that any of them has."""
    entries = list(entries)
    fields = dict.fromkeys(field for entry in entries for field in entry)
    return {field: [entry.get(field, _ABSENT) for entry in entries] for field in fields}


def from_columns(columns: StateDict, count: int) -> list[StateDict]:
    """Return what `to_columns` was given.

    Raises:
        ValueError: If a column is not as long as there are entries.
    """
    # Before anything is made: a count alone may say any number.
    if any(len(column) != count for column in columns.values()) or (count and not columns):
        raise ValueError("columns of other lengths than there are entries")
    entries: list[StateDict] = [{} for _ in range(count)]
    for field, column in columns.items():
        for entry, value in zip(entries, column, strict=True):
            if value != _ABSENT:
                entry[field] = value
    return entries
