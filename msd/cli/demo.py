"""`msd demo`: several real sources mixed, packed and balanced, from nothing, in under a minute."""

import importlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import Json

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.batch import RankBatch


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps to stream.")] = 20,
    scale: Annotated[float, typer.Option(help="Share of the usual amount of data.")] = 1.0,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the corpus in this folder.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a small real corpus, plan it, stream batches to every rank of a small mesh, and show what came out."""
    folder = Path(tempfile.mkdtemp(prefix="msd-demo-"))
    try:
        with _cache_in(folder / "cache" if keep is None else None):
            told = _run((keep or folder / "corpus"), steps, scale, quiet=as_json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        output.print_json(told)
    elif keep is not None:
        output.note(f"the corpus is kept: msd plan {keep}/corpus.yaml --steps 20")


@contextmanager
def _cache_in(folder: Path | None) -> Iterator[None]:
    """Keep indexes in `folder` for a while: those of a corpus that is about to go are of no use to anybody."""
    before = os.environ.get("MSD_CACHE")
    if folder is not None:
        os.environ["MSD_CACHE"] = str(folder)
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop("MSD_CACHE")
            os.environ |= {} if before is None else {"MSD_CACHE": before}


def _run(target: Path, steps: int, scale: float, *, quiet: bool) -> dict[str, Any]:
    from msd.cli.corpus import print_corpus
    from msd.cli.indexing import indexed
    from msd.cli.plan import print_outlook
    from msd.cli.survey import survey
    from msd.config import load_config
    from msd.testing.corpus import make_corpus

    report = make_corpus(target, scale=scale, on_progress=lambda stage: output.note(f"corpus: {stage}"))
    config = load_config(report.config)
    output.note("indexing")
    tables = indexed(config)
    output.note(f"planning {steps} steps from metadata")
    outlook = survey(config, tables, steps)
    if not quiet:
        print_corpus(report)
        print_outlook(config, outlook)
    streamed = _stream(config, steps)
    if not quiet:
        _print_streamed(config, streamed)
        _print_first_row(config, tables)
    return {"corpus": report.as_dict(), "plan": outlook.as_dict(), "streamed": streamed}


def _stream(config: "Config", steps: int) -> dict[str, Any]:
    """Take every rank's batches for some steps from a Dask cluster of the run's own; return what was received."""
    import msd

    tokens: Counter[str] = Counter(dict.fromkeys(config.sources, 0))
    documents = images = 0
    # What is imported for it is imported before it is said: an interrupt in the middle of an import may take any form.
    importlib.import_module("msd.runtime.dask.engine")
    output.note("starting a Dask cluster on this machine")
    with msd.start(config, runtime="dask") as engine, output.progress_bar() as progress:
        task = progress.add_task("streaming", total=steps)
        clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
        began = time.perf_counter()
        for _ in range(steps):
            for batch in (next(client) for client in clients):
                documents += len(batch.sample_ids)
                tokens.update(_tokens_by_source(batch))
                images += sum(0 if row.images is None else len(row.images.grids) for row in batch.microbatches)
            progress.update(task, advance=1, description=f"streaming · {tokens.total():,} tokens")
        seconds = time.perf_counter() - began
        stats = engine.stats()
    return {
        "steps": steps,
        "ranks": len(clients),
        "tokens": tokens.total(),
        "tokens_by_source": dict(tokens),
        "documents": documents,
        "images": images,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(tokens.total() / seconds),
        "fill": stats["fill"],
        "imbalance": stats["imbalance"],
        "imbalance_floor": stats["imbalance_floor"],
    }


def _tokens_by_source(batch: "RankBatch") -> Counter[str]:
    import numpy as np

    lengths = [length for row in batch.microbatches for length in np.diff(row.cu_seqlens).tolist() if length]
    found: Counter[str] = Counter()
    for (source, _, _), length in zip(batch.sample_ids, lengths, strict=True):
        found[source] += length
    return found


def _print_streamed(config: "Config", streamed: dict[str, Any]) -> None:
    wanted = {name: weight / sum(config.weights.values()) for name, weight in config.weights.items()}
    rows = [
        (name, output.percent(wanted[name]), output.percent(tokens / streamed["tokens"]), output.count(tokens))
        for name, tokens in streamed["tokens_by_source"].items()
    ]
    output.print_table(
        f"{streamed['steps']} steps streamed to {streamed['ranks']} ranks",
        ("source", "weight", "tokens received", "tokens"),
        rows,
        caption=(
            f"{streamed['documents']:,} documents, {streamed['images']:,} images, {streamed['tokens']:,} tokens in "
            f"{streamed['seconds']:.1f} s; fill {output.percent(streamed['fill'], 2)}, "
            f"imbalance {output.percent(streamed['imbalance'], 2)} "
            f"(floor {output.percent(streamed['imbalance_floor'], 2)})"
        ),
    )


def _print_first_row(config: "Config", tables: Any) -> None:
    from msd.cli.preview import batch_of, decoder, document_ids, merge_of
    from msd.cli.rows import described, print_row

    plan, batch = batch_of(config, tables, 0, 0)
    row = batch.microbatches[0]
    documents = described(row, document_ids(plan, 0, 0), decoder(config))
    print_row(
        output.stdout(),
        "step 0 · rank 0",
        row,
        documents,
        plan.sequence_length,
        characters=160,
        max_documents=6,
        merge=merge_of(config),
    )
