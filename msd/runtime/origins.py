"""Where documents of packed sequences came from before they were packed: their files keep it."""

from collections.abc import Mapping, Sequence
from typing import Any

from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.loader.rows import RowReader
from msd.sources.base import BadRow
from msd.sources.config import PACKED
from msd.sources.packed import open_origins

_READ_BYTES = 1 << 20


def with_origins(
    config: PipelineConfig, orders: Mapping[str, SourceOrder], documents: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return entries of `record.provenance`, with `origin` where the source is packed sequences.

    It names the sample of the run that packed it: `source`, `ordinal`, `part` and the `first_token` that the document
    begins with. Only the columns that say so are read, of the rows asked about.

    Raises:
        SourceError: If a file cannot be read.
    """
    wanted: dict[str, list[int]] = {}
    for document in documents:
        if config.sources[document["source"]].format == PACKED:
            wanted.setdefault(document["source"], []).append(document["ordinal"])
    if not wanted:
        return list(documents)
    rows = {name: _rows(config, name, orders[name], ordinals) for name, ordinals in wanted.items()}
    return [
        document | {"origin": _origin(rows[document["source"]][document["ordinal"]], document["part"])}
        if document["source"] in rows
        else document
        for document in documents
    ]


def _rows(config: PipelineConfig, name: str, order: SourceOrder, ordinals: Sequence[int]) -> dict[int, Any]:
    different = sorted(set(ordinals))
    reader = open_origins(name, config.sources[name], order.blocks)
    try:
        return dict(zip(different, RowReader(order, reader, read_bytes=_READ_BYTES).pick(different), strict=True))
    finally:
        reader.close()


def _origin(row: Any, part: int) -> dict[str, Any] | None:
    if isinstance(row, BadRow):
        return None
    return {
        "source": row["sources"][part],
        "ordinal": int(row["ordinals"][part]),
        "part": int(row["parts"][part]),
        "first_token": int(row["first_tokens"][part]),
    }
