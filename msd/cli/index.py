"""`msd index CONFIG`: count and cut every source once; what is unchanged comes from the cache."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.index import BlockTable
    from msd.core.order import SourceOrder
    from msd.core.unbounded import UnboundedOrder

_FRAME_BYTES = 1 << 20


def index(
    config_path: ConfigPath,
    overrides: Overrides = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Shards indexed at once.", show_default=False)] = None,
    seekable: Annotated[
        bool,
        typer.Option("--seekable", help="Also rewrite .gz and .zst JSON lines so that they can be entered anywhere."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the files of --seekable.")] = Path("seekable"),
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Index every source and show what it holds, how far its rows are mixed, and what entering its streams costs."""
    from msd.build import build_orders
    from msd.cli.indexing import indexed
    from msd.sources.cache import default_cache_dir

    config = read_config(config_path, overrides, sets)
    read: set[str] = set()
    tables = indexed(config, workers=workers, read=read)
    orders = build_orders(config, tables)
    facts = [_facts(name, orders[name], name not in read) for name in config.sources]
    rewritten = _rewritten(config, tables, out) if seekable else {}
    if as_json:
        output.print_json({"cache": str(default_cache_dir()), "sources": facts, "seekable": rewritten})
        return
    _print(facts)
    cached = [fact["source"] for fact in facts if fact["from_cache"]]
    output.note(f"from the cache, not read again: {', '.join(cached) or 'none'} ({default_cache_dir()})")
    for fact in facts:
        for remark in fact["remarks"]:
            output.note(f"{fact['source']}: {remark}")
    for name, files in rewritten.items():
        output.note(f"{name}: {len(files)} files rewritten; set sources.{name}.path={out / name}/*.jsonl.zst")


def _facts(name: str, order: "SourceOrder", from_cache: bool) -> dict[str, Any]:
    from msd.core.unbounded import UnboundedOrder
    from msd.sources.shard import entry_cost

    if isinstance(order, UnboundedOrder):
        return _facts_of_ledger(name, order)
    blocks = order.blocks
    units = int(blocks.unit_B.max()) + 1 if blocks.num_blocks else 0
    costs = entry_cost(blocks)
    window_rows = -(-blocks.num_rows * order.window_blocks // max(1, blocks.num_blocks))
    return {
        "source": name,
        "shards": len(blocks.shards),
        "blocks": blocks.num_blocks,
        "units": units,
        "rows": int(blocks.num_rows_B.sum()),
        "rows_of_split": blocks.num_rows,
        "stored_bytes": sum(shard.nbytes for shard in blocks.shards),
        "held_bytes": blocks.nbytes,
        "window_blocks": order.window_blocks,
        "window_rows": window_rows,
        "worst_entry_bytes": int(costs.max()) if blocks.num_blocks else 0,
        "mean_entry_bytes": int(costs.mean()) if blocks.num_blocks else 0,
        "from_cache": from_cache,
        "remarks": _remarks(order, units, int(costs.max()) if blocks.num_blocks else 0),
    }


def _facts_of_ledger(name: str, order: "UnboundedOrder") -> dict[str, Any]:
    """Return what the ledger of a source without an end holds so far; nothing is admitted for it."""
    rows, admissions = order.admissions.count()
    unknown = dict.fromkeys(
        ("blocks", "units", "stored_bytes", "held_bytes", "window_rows", "worst_entry_bytes", "mean_entry_bytes")
    )
    return {
        "source": name,
        "shards": admissions,
        "rows": rows,
        "rows_of_split": rows,
        "window_blocks": order.window_blocks or None,
        **unknown,
        "from_cache": False,
        "remarks": [f"no end: {rows:,} rows in {admissions:,} admissions so far; only what is admitted has an index"],
    }


def _remarks(order: "SourceOrder", units: int, worst_entry_bytes: int) -> list[str]:
    """Return what a user should know of how well the source mixes and how it is entered."""
    from msd.cli.remarks import narrow_window

    blocks = order.blocks
    if not blocks.num_rows:
        return ["no rows"]
    remarks = []
    if not order.shuffle:
        remarks.append("shuffle: false keeps file order")
    elif (narrow := narrow_window(order)) is not None:
        remarks.append(narrow)
    elif order.window_blocks < blocks.num_blocks and units == 1:
        remarks.append("the whole source is one stream: rows mix within windows only, windows stay in file order")
    if worst_entry_bytes:
        remarks.append(
            f"a stream is entered late by decoding up to {output.size(worst_entry_bytes)} that are thrown away; "
            "--seekable rewrites such files"
        )
    return remarks


def _print(facts: list[dict[str, Any]]) -> None:
    output.print_table(
        "what the sources hold",
        ("source", "shards", "stored", "rows", "of split", "blocks"),
        [
            (
                fact["source"],
                output.short(fact["shards"]),
                "-" if fact["stored_bytes"] is None else output.size(fact["stored_bytes"]),
                output.short(fact["rows"]),
                output.short(fact["rows_of_split"]),
                output.short(fact["blocks"]),
            )
            for fact in facts
        ],
        caption="of split: rows in the part that `split` chooses; a block is what is read at once",
    )
    output.print_table(
        "how far their rows are mixed",
        ("source", "units", "window blocks", "window rows", "entry cost"),
        [
            (
                fact["source"],
                output.short(fact["units"]),
                output.short(fact["window_blocks"]),
                output.short(fact["window_rows"]),
                output.size(fact["worst_entry_bytes"]) if fact["worst_entry_bytes"] else "0",
            )
            for fact in facts
        ],
        caption="rows of a window are permuted together; a unit is read from its start, which entering it late costs",
    )


def _rewritten(config: "Config", tables: "dict[str, BlockTable]", out: Path) -> dict[str, list[str]]:
    """Rewrite the compressed JSON lines of every source that cannot be entered at random."""
    from msd.errors import InputError
    from msd.sources.seekable import rewrite_seekable
    from msd.sources.shard import entry_cost

    made: dict[str, list[str]] = {}
    for name, blocks in tables.items():
        costs = entry_cost(blocks)
        for number, shard in enumerate(blocks.shards):
            packed = shard.path.endswith((".gz", ".zst", ".zstd"))
            if not packed or not costs[blocks.shard_B == number].any():
                continue
            target = out / name / f"{Path(shard.name).name.partition('.')[0]}.jsonl.zst"
            if target.exists():
                raise InputError(f"{str(target)!r} exists; name another folder with --out")
            target.parent.mkdir(parents=True, exist_ok=True)
            rewrite_seekable(shard.path, str(target), frame_bytes=_FRAME_BYTES)
            made.setdefault(name, []).append(str(target))
    return made
