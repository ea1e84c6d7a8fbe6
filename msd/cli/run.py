"""`msd run CONFIG --out DIR`: the samples or packed sequences of a run as files, instead of a stream."""

from typing import Annotated, Any, Literal

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, Storage, read_config, storage_options


def run(
    config_path: ConfigPath,
    overrides: Overrides = None,
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR|URL", help="Folder for the files.")] = "",
    what: Annotated[
        Literal["packed", "samples"],
        typer.Option("--format", help="Sequences of steps as ranks would receive them, or samples by source."),
    ] = "packed",
    files: Annotated[Literal["parquet", "arrow"], typer.Option(help="Kind of file.")] = "parquet",
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="packed: so many steps; all of finite data without it.", show_default=False),
    ] = None,
    epochs: Annotated[float, typer.Option(min=0.0, help="samples: passes over each source, fractions too.")] = 1.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; runtime.workers without it.", show_default=False)
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="A Dask scheduler that runs already; without it a cluster of its own.")
    ] = None,
    storage: Storage = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Write samples or packed sequences as Parquet or Arrow; the same command again goes on, or verifies."""
    from msd.errors import ConfigError
    from msd.runtime.dask.batch.contents import Asked
    from msd.runtime.dask.batch.driver import run_batch

    if not out:
        raise ConfigError("msd run needs --out DIR: a folder that is empty or not there, or that it was writing to")
    config = read_config(config_path, overrides, sets)
    asked = Asked(
        out=out,
        format=what,
        kind=files,
        steps=steps,
        epochs=epochs,
        workers=workers or config.runtime.workers,
        scheduler=scheduler or config.runtime.scheduler,
        storage_options=storage_options(storage),
    )
    unit = "steps" if what == "packed" else "rows"
    with output.progress_bar() as progress:
        task = progress.add_task(f"writing {unit}", total=steps if what == "packed" else None)
        manifest = run_batch(config, asked, lambda at: progress.update(task, completed=at.done, total=at.total))
    _print(manifest, out, as_json)


def _print(manifest: dict[str, Any], out: str, as_json: bool) -> None:
    totals = manifest["totals"]
    if as_json:
        output.print_json({"out": out, "fingerprint": manifest["fingerprint"], **totals})
        return
    what = "sequences" if manifest["format"] == "packed" else "samples"
    output.stdout().print(
        f"{out}: {totals['rows']:,} {what}, {output.short(totals['tokens'])} tokens, {output.size(totals['bytes'])} in "
        f"{totals['files']} files; all of it is in manifest.json",
        markup=False,
        soft_wrap=True,
    )
