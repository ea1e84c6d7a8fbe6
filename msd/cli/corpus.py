"""`msd corpus DIR`: a small real multisource corpus, without a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msd.cli import output
from msd.cli.options import Json

if TYPE_CHECKING:
    from msd.testing.corpus import CorpusReport


def corpus(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.", show_default=False)],
    scale: Annotated[float, typer.Option(help="Share of the usual amount of data.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Which files, regions and sizes are drawn.")] = 17,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds other things.")] = False,
    as_json: Json = False,
) -> None:
    """Make a small real corpus of five sources, a tokenizer and corpus.yaml from what is installed; no network.

    Python source (Parquet), docstrings (jsonl.zst), documentation (jsonl), package descriptions (jsonl.gz) and
    captioned photographs (WebDataset). Equal arguments give equal bytes on one machine.
    """
    from msd.testing.corpus import make_corpus

    with output.progress_bar() as progress:
        task = progress.add_task("making the corpus", total=5)

        def on_progress(stage: str) -> None:
            progress.update(task, advance=1, description=stage)

        report = make_corpus(folder, scale=scale, seed=seed, force=force, on_progress=on_progress)
    if as_json:
        output.print_json(report.as_dict())
        return
    print_corpus(report)
    output.note(f"a ready configuration: {report.config}")


def print_corpus(report: "CorpusReport") -> None:
    """Print what was made, a line per source."""
    rows = [
        (
            source.name,
            source.format,
            source.files,
            output.short(source.rows),
            output.short(source.tokens),
            source.tokens_min,
            output.short(source.tokens_median),
            output.short(source.tokens_p99),
            output.short(source.tokens_max),
        )
        for source in report.sources
    ]
    columns = ("source", "format", "files", "rows", "tokens", "min", "median", "p99", "max")
    output.print_table(
        f"{report.path}",
        columns,
        rows,
        text_columns=2,
        caption=f"min to max: tokens of a row, image placeholders included; vocabulary {report.vocabulary:,}",
    )
