"""`msd plan CONFIG`: what each source will give, how full and how even the steps are, before anything runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config

if TYPE_CHECKING:
    from msd.cli.survey import Outlook, SourceOutlook
    from msd.config import Config
    from msd.core.plan import StepPlan


def plan(
    config_path: ConfigPath,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to plan.")] = 10,
    mesh: Annotated[
        str | None, typer.Option(metavar="AXIS=N,...", help="Plan for another mesh: dp=4,cp=2.", show_default=False)
    ] = None,
    explain: Annotated[
        int | None, typer.Option(metavar="STEP", min=0, help="Also explain one step.", show_default=False)
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Plan the first steps from metadata alone: shares against weights, fill, balance against its floor, step time."""
    from msd.cli.indexing import indexed
    from msd.cli.survey import survey

    config = read_config(config_path, overrides, sets)
    if mesh is not None:
        config = config.replace(mesh={**dict.fromkeys(config.mesh, 1), **_mesh_sizes(mesh)})
    if explain is not None:
        steps = max(steps, explain + 1)
    kept: dict[int, StepPlan] = {}
    tables = indexed(config)
    with output.progress_bar() as progress:
        task = progress.add_task("planning", total=steps)

        def on_plan(made: "StepPlan") -> None:
            progress.advance(task)
            if made.step == explain:
                kept[made.step] = made

        outlook = survey(config, tables, steps, on_plan=on_plan)
    if as_json:
        output.print_json(outlook.as_dict() | _explanation(kept))
        return
    print_outlook(config, outlook)
    for text in _explanation(kept).values():
        output.stdout().print(text, markup=False, soft_wrap=True)
    if explain is not None and explain not in kept:
        output.note(f"there is no step {explain}: the run ends after {outlook.num_steps} steps")


def print_outlook(config: "Config", outlook: "Outlook") -> None:
    """Print the table of sources and the figures of the steps."""
    unit = config.mixture.unit
    rows = [_source_row(source, unit) for source in outlook.sources]
    drawn = "tokens drawn" if unit == "tokens" else "samples drawn"
    columns = ("source", "rows/epoch", "target", drawn, "off by", "tokens", "samples", "epochs", "ends", "undelivered")
    output.print_table(f"{outlook.num_steps} steps by source", columns, rows, caption=f"shares count {unit}")
    output.print_table("the steps, on the mean", ("figure", "value", "floor"), _figures(outlook))
    if outlook.is_over:
        output.note(f"the data ends after {outlook.num_steps} of the {outlook.asked_steps} steps asked for")
    for remark in outlook.notes:
        output.note(remark)


def _source_row(source: "SourceOutlook", unit: str) -> tuple[object, ...]:
    share = source.token_share if unit == "tokens" else source.sample_share
    lost = ", ".join(f"{number} {outcome}" for outcome, number in source.undelivered.items())
    return (
        source.name,
        output.count(source.rows_per_epoch),
        output.percent(source.target),
        output.percent(share),
        f"{100 * (share - source.target):+.1f}",
        output.count(source.tokens),
        output.count(source.samples),
        f"{source.epochs:.2f}",
        "never" if source.ends_at_step is None else f"step {source.ends_at_step:,}",
        lost or "0",
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
        sizes[axis] = int(number)
    return sizes


def _explanation(kept: "dict[int, StepPlan]") -> dict[str, str]:
    if not kept:
        return {}
    import msd

    return {"explanation": str(msd.explain(next(iter(kept.values()))))}
