"""`msd preview CONFIG`: the rows of one step as a rank will be trained on them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.batch import Microbatch, RankBatch
    from msd.core.index import BlockTable
    from msd.core.plan import StepPlan
    from msd.core.sample import Sample, SampleId

Decode = Callable[[str, list[int]], str]
"""(source, token ids) to text."""


def preview(
    config_path: ConfigPath,
    overrides: Overrides = None,
    step: Annotated[int, typer.Option(min=0, help="Which step.")] = 0,
    rank: Annotated[int, typer.Option(min=0, help="Whose rows.")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="Microbatches to show.")] = 1,
    characters: Annotated[int, typer.Option(min=0, help="Text of each document to show; 0 shows all.")] = 240,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also save the images as PNG.", show_default=False)
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show rows as coloured documents with their boundaries, padding, sample ids and images."""
    from msd.cli.indexing import indexed
    from msd.cli.rows import described, print_row

    config = read_config(config_path, overrides, sets)
    plan, batch = batch_of(config, indexed(config), step, rank)
    decode = decoder(config)
    microbatches = list(enumerate(batch.microbatches[:rows]))
    shown = [described(microbatch, document_ids(plan, rank, slot), decode) for slot, microbatch in microbatches]
    saved = [] if images is None else _saved(images, config, step, rank, [row for _, row in microbatches])
    if as_json:
        output.print_json({"step": step, "rank": rank, "rows": shown, "images": saved})
        return
    console = output.stdout()
    for (slot, microbatch), documents in zip(microbatches, shown, strict=True):
        title = f"step {step} · rank {rank} · microbatch {slot} of {plan.num_microbatches}"
        print_row(
            console, title, microbatch, documents, plan.sequence_length, characters=characters, merge=merge_of(config)
        )
    if batch.markers:
        output.note(f"rank {rank} fetches nothing: rank {batch.markers[0].root} broadcasts its rows; use --rank")
    for path in saved:
        output.note(f"saved {path}")


def batch_of(config: "Config", tables: "dict[str, BlockTable]", step: int, rank: int) -> "tuple[StepPlan, RankBatch]":
    """Return one step's plan and the batch of one rank, assembling nothing else.

    Raises:
        ConfigError: If the rank is outside the mesh, or the run ends before the step.
    """
    from msd.build import build_constructor, build_loaders, build_orders, build_planner, plan_steps
    from msd.errors import ConfigError

    config.place.check_rank(rank)
    orders = build_orders(config, tables)
    loaders = build_loaders(config, orders)
    plan = None
    try:
        planner = build_planner(config, orders)
        for plan in plan_steps(planner, loaders, steps=step + 1):
            if plan.step == step:
                break
        if plan is None or plan.step != step:
            last = "at once" if plan is None else f"with step {plan.step}"
            why = "; ".join(planner.closing_notes or (() if plan is None else plan.notes)) or "its data ends"
            remedy = "" if plan is None else "; name an earlier --step"
            raise ConfigError(f"there is no step {step}: the run ends {last} ({why}){remedy}")
        bucket = plan.bucket_of(rank)
        samples: dict[SampleId, Sample] = {}
        for name in plan.source_names:
            ids = list(dict.fromkeys(found for found in plan.sample_ids(bucket) if found.source == name))
            slab = loaders[name].fetch(ids)
            samples |= {sample_id: slab.sample(sample_id) for sample_id in ids}
        constructor = build_constructor(config)
        # A row is shown whole, also where the rank would get less of it, or others would encode its images.
        shown = replace(plan, fields_P=None, encoder=None)
        return plan, constructor.rank_batch(constructor.build(shown, bucket, samples.__getitem__), shown, rank)
    finally:
        for loader in loaders.values():
            loader.close()


def decoder(config: "Config") -> Decode:
    """Return a function from token ids to text; ids themselves where a source names no tokenizer."""
    from msd.cli.remarks import tokenizers_of

    loaded: dict[str, Any] = {}
    chosen = tokenizers_of(config)

    def decode(source: str, ids: list[int]) -> str:
        path = chosen.get(source)
        if path is None:
            return " ".join(map(str, ids))
        if path == "bytes":
            return bytes(token for token in ids if token < 256).decode("utf-8", "replace")
        if path not in loaded:
            from tokenizers import Tokenizer

            loaded[path] = Tokenizer.from_file(path)
        return str(loaded[path].decode(ids, skip_special_tokens=False))

    return decode


def document_ids(plan: "StepPlan", rank: int, slot: int) -> "list[SampleId]":
    """Return the ids of the documents of one microbatch of a rank, in row order."""
    return [plan.sample_id(document) for document in plan.documents_of(plan.bucket_of(rank), slot).tolist()]


def merge_of(config: "Config") -> int:
    """Return the merge of the configuration's images; one run has one."""
    from msd.config.written import image_cut

    cut = image_cut(config)
    return 1 if cut is None else cut[1]


def _saved(folder: Path, config: "Config", step: int, rank: int, rows: "list[Microbatch]") -> list[str]:
    from PIL import Image

    from msd.cli.pictures import pictures

    paths = []
    for slot, row in enumerate(rows):
        if row.images is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for number, (document, pixels) in enumerate(pictures(row.images, merge_of(config))):
            path = folder / f"step{step:06d}-rank{rank}-row{slot}-document{document}-image{number}.png"
            Image.fromarray(pixels).save(path)
            paths.append(str(path))
    return paths
