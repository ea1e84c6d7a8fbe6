"""`msd plan CONFIG`: what each source will give, how full and how even the steps are, before anything runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from msd.cli.survey import Outlook, SourceOutlook
    from msd.config import Config
    from msd.core.index import BlockTable
    from msd.core.plan import StepPlan
    from msd.planner.forecast import Forecast

_NOTES_SHOWN = 12


def plan(
    config_path: ConfigPath,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to plan.")] = 10,
    mesh: Annotated[
        str | None, typer.Option(metavar="AXIS=N,...", help="Plan for another mesh: dp=4,cp=2.", show_default=False)
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="STEP|SAMPLE",
            help="Also explain one step (3), or follow a sample from its file to the ranks (web:17.0).",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(metavar="STEP", min=1, help="Also foresee how far a run uses its sources up.", show_default=False),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also predict step times, against unbalanced and other assignments.")
    ] = False,
    trainer: Annotated[
        list[str] | None,
        typer.Option(metavar="A=B", help="What --simulate assumes: flops_per_s=4e14; repeat it.", show_default=False),
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Plan the first steps from metadata alone: shares against weights, fill, balance against its floor, step time."""
    from msd.cli.following import Asked
    from msd.cli.indexing import indexed
    from msd.cli.remarks import mixed_tokenizers
    from msd.cli.simulation import print_simulation, simulation_of
    from msd.cli.survey import survey
    from msd.runtime.base import check_supported

    config = read_config(config_path, overrides, sets)
    check_supported(config)
    if mesh is not None:
        config = config.on_mesh(_mesh_sizes(mesh))
    asked = None if explain is None else Asked(explain)
    if asked is not None:
        asked.check(config)
        steps = max(steps, (asked.step or 0) + 1)
    tables = indexed(config)
    with output.progress_bar() as progress:
        task = progress.add_task("planning", total=steps)

        def on_plan(made: "StepPlan") -> None:
            progress.advance(task)
            if asked is not None:
                asked.look(made)

        outlook = survey(config, tables, steps, until=until, on_plan=on_plan)
    simulation = simulation_of(config, trainer or [], steps) if simulate or trainer else None
    answer, remarks = ({}, []) if asked is None else asked.answer(config, tables, outlook)
    remarks += [*mixed_tokenizers(config), *_warnings(config, tables, outlook)]
    if as_json:
        simulated = {} if simulation is None else {"simulation": simulation.as_dict()}
        output.print_json(outlook.as_dict() | {"notes": [*outlook.notes, *remarks]} | answer | simulated)
        return
    print_outlook(config, outlook)
    if simulation is not None:
        print_simulation(simulation)
    for remark in remarks:
        output.note(remark)
    if answer.get("explanation"):
        output.stdout().print(answer["explanation"], markup=False, soft_wrap=True)


def print_outlook(config: "Config", outlook: "Outlook") -> None:
    """Print what is drawn of each source, how far that uses it up, and the figures of the steps."""
    unit = config.mixture.unit
    counted = unit.replace("_", " ")
    output.print_table(
        f"drawn in {outlook.num_steps} steps",
        ("source", "target", "drawn", "off by", "tokens", "samples"),
        [_drawn(source, unit) for source in outlook.sources],
        caption=f"target, drawn: share of the {counted}, by weight and as planned; off by: percentage points",
    )
    output.print_table(
        "how far that uses the sources up",
        ("source", "rows/epoch", "epochs", "ends at", "filtered", "failed", "too long"),
        [_used(source) for source in outlook.sources],
        caption="ends at: the step with its last row, at this pace; filtered, failed, too long: rows met on the way "
        "that gave no sample",
    )
    output.print_table("the steps, on the mean", ("figure", "value", "floor"), _figures(outlook))
    if outlook.forecast is not None:
        print_forecast(outlook.forecast, unit)
    if outlook.is_over:
        output.note(f"the data ends after {outlook.num_steps} of the {outlook.asked_steps} steps asked for")
    if outlook.waits_for is not None:
        output.note(f"planned {outlook.num_steps} of the {outlook.asked_steps} steps asked for: {outlook.waits_for}")
    for remark in outlook.notes[:_NOTES_SHOWN]:
        output.note(remark)
    if len(outlook.notes) > _NOTES_SHOWN:
        output.note(f"and {len(outlook.notes) - _NOTES_SHOWN} more notes; --json tells all")


def print_forecast(forecast: "Forecast", unit: str) -> None:
    """Print what a run is expected to draw of each source."""
    output.print_table(
        f"expected by step {forecast.num_steps:,}",
        ("source", "share", "tokens", "epochs", "repeats at", "ends at"),
        [
            (
                source.name,
                output.percent(source.share),
                output.short(source.tokens),
                f"{source.epochs:.2f}",
                _step(source.repeats_at_step),
                _step(source.ends_at_step),
            )
            for source in forecast.sources
        ],
        caption=f"share: of the {unit.replace('_', ' ')}; repeats at, ends at: steps of its second epoch and of its "
        "last row",
    )


def _step(step: int | None) -> str:
    return "-" if step is None else f"step {step:,}"


def _warnings(config: "Config", tables: "Mapping[str, BlockTable]", outlook: "Outlook") -> "Iterator[str]":
    from msd.build import build_orders
    from msd.cli.remarks import narrow_window, repeating

    for name, order in build_orders(config, tables).items():
        narrow = narrow_window(order)
        if narrow is not None:
            yield f"warning: source {name!r}: {narrow}"
    if outlook.forecast is not None:
        yield from repeating(outlook.forecast)


def _drawn(source: "SourceOutlook", unit: str) -> tuple[object, ...]:
    share = source.share(unit)
    return (
        source.name,
        output.percent(source.target),
        output.percent(share),
        f"{round(100 * (share - source.target), 1) + 0.0:+.1f}",
        output.short(source.tokens),
        output.short(source.samples),
    )


def _used(source: "SourceOutlook") -> tuple[object, ...]:
    return (
        source.name,
        output.short(source.rows_per_epoch),
        f"{source.epochs:.2f}",
        "never" if source.ends_at_step is None else f"step {source.ends_at_step:,}",
        *(output.short(source.undelivered.get(outcome, 0)) for outcome in ("filtered", "failed", "overflowed")),
    )


def _figures(outlook: "Outlook") -> list[tuple[object, ...]]:
    means = outlook.means
    figures: list[tuple[object, ...]] = [
        ("fill: real tokens over room", output.percent(means["fill"], 2), ""),
        ("imbalance of ranks: slowest over mean, less 1", *_against_floor(means, "imbalance")),
        ("lockstep of microbatches: the same, slot by slot", *_against_floor(means, "lockstep")),
        ("imbalance before balancing", output.percent(means["packed_imbalance"], 2), ""),
        ("worst imbalance of a step", output.percent(outlook.max_imbalance, 2), ""),
        ("longest row, tokens", output.count(outlook.max_row_tokens), ""),
    ]
    if "encoder_imbalance" in means:
        figures += [
            ("imbalance of ranks that encode images", *_against_floor(means, "encoder_imbalance")),
            ("the same, if each row's ranks encoded its own", output.percent(means["encoder_row_imbalance"], 2), ""),
            ("embeddings that travel", output.percent(means["encoder_moved"]), ""),
        ]
    if outlook.step_flops is not None:
        figures.append(("floating-point operations of a step", f"{outlook.step_flops:.3g}", ""))
    if outlook.predicted_step_s is not None:
        figures.append(("predicted step time, s", f"{outlook.predicted_step_s:.4g}", ""))
    return figures


def _against_floor(means: dict[str, float], name: str) -> tuple[str, str]:
    return output.percent(means[name], 2), output.percent(means[f"{name}_floor"], 2)


def _mesh_sizes(text: str) -> dict[str, int]:
    from msd.errors import ConfigError

    sizes = {}
    for piece in text.replace(",", " ").split():
        axis, equals, number = piece.partition("=")
        if not equals or not number.isdigit():
            raise ConfigError(f"--mesh {text!r}: {piece!r} must look like dp=4")
        if axis in sizes:
            raise ConfigError(f"--mesh {text!r}: {axis} stands twice; name each axis once")
        sizes[axis] = int(number)
    return sizes
