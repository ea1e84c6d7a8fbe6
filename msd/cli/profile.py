"""`msd profile CONFIG`: what preparing rows costs on this machine, and how well that can be predicted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import Json, Overrides, Sets, read_config
from msd.errors import ConfigError

if TYPE_CHECKING:
    from msd.config import Config
    from msd.cost.profile import Profile

SECONDS = 15.0


def profile(
    config_path: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration (YAML).", show_default=False)
    ] = None,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time for all sources together, about.")] = SECONDS,
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this source; repeat it.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write it here too; a whole one is kept in the cache.", show_default=False)
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Fit the cost of a training step instead, to timed microbatches (CSV, JSON lines or Parquet).",
            show_default=False,
        ),
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> int:
    """Time what is done to sampled rows of each source, fit models to it, and keep the profile.

    `msd partition` goes by the profile that is kept.
    """
    if training is not None:
        return _training(training, as_json)
    if config_path is None:
        raise ConfigError("name a configuration: msd profile CONFIG, or --training TABLE")
    config = read_config(config_path, overrides, sets)
    found, problems, path = profiled(config, seconds=seconds, sources=source)
    if out is not None:
        from msd.profiling import keep

        keep(found, out)
    if as_json:
        import msgspec

        kept = None if path is None else str(path)
        output.print_json({"path": kept, "problems": problems, **msgspec.to_builtins(found)})
    else:
        _print(found)
        places = [str(place) for place in (path, out) if place is not None]
        output.note(f"kept in {' and '.join(places)}" if places else "not kept: it is not of all sources")
    for name, problem in problems.items():
        output.note(f"{name}: {problem}")
    return 1 if problems else 0


def profiled(
    config: "Config", *, seconds: float, sources: list[str] | None = None
) -> "tuple[Profile, dict[str, str], Path | None]":
    """Return a profile that was made now, what could not be profiled, and where it is kept unless it lacks some."""
    from msd.build import build_chains, build_orders, index_all
    from msd.profiling import keep, profile_path
    from msd.profiling import profile as measure
    from msd.profiling.profile import SourceDone
    from msd.profiling.store import fingerprints

    with output.progress_bar() as progress:
        task = progress.add_task("profiling", total=len(sources or config.sources))

        def on_progress(done: SourceDone) -> None:
            progress.update(task, completed=done.num_done, description=f"profiled {done.source}")

        found, problems = measure(config, seconds=seconds, sources=sources, on_progress=on_progress)
    if len(found.sources) < len(config.sources):
        return found, problems, None
    path = profile_path(fingerprints(config, build_orders(config, index_all(config)), build_chains(config)))
    keep(found, path)
    return found, problems, path


def _print(found: "Profile") -> None:
    columns = ["source", "runs in", "rows", "ms a row", "CPU", "read", "MAPE", "sums", "MiB"]
    rows = [
        [
            name,
            one.runs_in,
            one.num_rows,
            f"{1e3 * one.prepare_s:.3g}",
            f"{one.cpu_s / one.prepare_s:.0%}" if one.prepare_s else "",
            f"{one.read_s / one.prepare_s:.0%}" if one.prepare_s else "",
            f"{one.mape:.0%}",
            f"{one.sum_error:.1%}",
            f"{one.loader_bytes / 2**20:.0f}",
        ]
        for name, one in found.sources.items()
    ]
    machine = ", ".join(f"{key} {value}" for key, value in found.machine.items())
    output.print_table("profile", columns, rows, text_columns=2, caption=machine)
    for name, one in found.sources.items():
        output.note(f"{name}: {one.of_rows} (by {one.estimator}; repeats of a row differ by {one.repeat_spread:.0%})")
        for note in one.notes:
            output.note(f"{name}: {note}")
        for outlier in one.outliers:
            output.note(
                f"{name}: row {outlier.ordinal} took {1e3 * outlier.seconds:,.1f} ms, "
                f"{outlier.seconds / max(outlier.predicted, 1e-9):,.0f} times what others like it do"
            )


def _training(path: Path, as_json: bool) -> int:
    from msd.cost.training import fit_training

    fits = fit_training(_table(path))
    entries: dict[str, dict[str, Any]] = {
        one.module: {
            "kind": "fitted",
            "linear": one.cost.linear,
            "quadratic": one.cost.quadratic,
            "constant": one.cost.constant,
        }
        for one in fits
    }
    if as_json:
        scores = {one.module: {"mape": one.score.mape, "overhead_s": one.overhead_s} for one in fits}
        output.print_json({"cost": entries, "fit": scores})
        return 0
    import yaml

    print(yaml.safe_dump({"cost": entries}, sort_keys=False), end="")
    for one in fits:
        output.note(
            f"{one.module}: off by {one.score.mape:.1%} of a microbatch on average over {one.score.num_rows}; "
            f"{1e3 * one.overhead_s:.3g} ms of each are left out, since no placement changes them"
        )
    return 0


def _table(path: Path) -> list[dict[str, Any]]:
    import pandas as pd

    try:
        match path.suffix:
            case ".csv":
                frame = pd.read_csv(path)
            case ".parquet":
                frame = pd.read_parquet(path)
            case ".json" | ".jsonl":
                frame = pd.read_json(path, lines=path.suffix == ".jsonl")
            case _:
                raise ConfigError(f"{str(path)!r} is none of .csv, .jsonl, .json and .parquet")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read as a table: {error}") from None
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
