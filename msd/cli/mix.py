"""`msd mix show|set|suspend|resume|history`: what a run draws by, and other weights while it goes on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import Json

if TYPE_CHECKING:
    from msd.runtime.control import RunControl

app = typer.Typer(
    help="Look at the mixture of a run that is under way, and change it at a step.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
RunAddress = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Address of the run, as `msd serve` prints it, or the file of its --rendezvous."
    ),
]
AtStep = Annotated[
    int | None,
    typer.Option("--at-step", min=0, help="The first step that it affects; the first that is not planned without it."),
]
Who = Annotated[str | None, typer.Option("--who", help="Who decides, for the journal; you without it.")]


def run_at(address: str) -> "RunControl":
    """Return the run at an address, or the one that a file names."""
    from msd.client.link.certificates import certificates_of
    from msd.runtime.control import RunControl

    is_file = "://" not in address and Path(address).is_file()
    return RunControl(Path(address).resolve().as_uri() if is_file else address, certificates=certificates_of())


@app.command()
def show(run: RunAddress, as_json: Json = False) -> None:
    """Print by source what the next step is drawn by, and what was drawn so far."""
    stats = run_at(run).stats()
    shown = {name: _of_source(one) for name, one in stats["sources"].items()}
    if as_json:
        output.print_json({"next_step": stats["next_step"], "sources": shown})
        return
    output.print_table(
        f"next step {stats['next_step']}",
        ("source", "target", "tokens", "samples", "tokens so far", "samples so far"),
        [
            (
                f"{name} (suspended)" if one["is_suspended"] else name,
                output.percent(one["target_share"]),
                output.percent(one["token_share"]),
                output.percent(one["sample_share"]),
                output.short(one["tokens"]),
                output.short(one["samples"]),
            )
            for name, one in shown.items()
        ],
        caption="target: of what the mixture counts, at the next step; tokens, samples: of all steps so far",
    )


@app.command("set")
def set_weights(
    run: RunAddress,
    weights: Annotated[
        list[str], typer.Argument(metavar="SOURCE=WEIGHT...", help="Others have weight 0 from then on.")
    ],
    at_step: AtStep = None,
    ramp: Annotated[int, typer.Option(min=0, help="Steps over which the weights change to these.")] = 0,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Draw by other weights from a step on; journalled, and replayed with the run."""
    step = run_at(run).mix(_weights(weights), at_step=at_step, ramp=ramp, who=who)
    _tell(step, f"the mixture is {', '.join(weights)} from step {step} on", as_json)


@app.command()
def suspend(
    run: RunAddress,
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    at_step: AtStep = None,
    reason: Annotated[str, typer.Option(help="For the journal.")] = "",
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Draw from a source no longer, until it is resumed."""
    step = run_at(run).suspend(source, at_step=at_step, reason=reason, who=who)
    _tell(step, f"{source} is suspended from step {step} on", as_json)


@app.command()
def resume(
    run: RunAddress,
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    at_step: AtStep = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Draw from a suspended source again."""
    step = run_at(run).resume_source(source, at_step=at_step, who=who)
    _tell(step, f"{source} is drawn from again from step {step} on", as_json)


@app.command()
def history(run: RunAddress, as_json: Json = False) -> None:
    """List what was decided while the run went on: from which step on, what, by whom, when."""
    edits = run_at(run).edits()
    if as_json:
        output.print_json({"edits": edits})
        return
    output.print_table(
        f"{len(edits)} edits",
        ("what", "who", "when", "from step"),
        [(described(edit), edit.get("who", ""), edit.get("when", ""), edit["at_step"]) for edit in edits],
        text_columns=3,
    )


def described(edit: dict[str, Any]) -> str:
    """Return an edit in words."""
    match edit["edit"]:
        case "set_weights":
            weights = ", ".join(f"{name} {weight:g}" for name, weight in edit["weights"].items())
            ramp = edit.get("ramp", 0)
            return f"weights {weights}" + (f", over {ramp} steps" if ramp else "")
        case "suspend":
            return f"suspend {edit['source']}" + (f": {edit['reason']}" if edit.get("reason") else "")
        case "resume":
            return f"resume {edit['source']}"
        case "skip_rows":
            rows = f"{edit['first']}" if edit["first"] == edit["last"] else f"{edit['first']} to {edit['last']}"
            return f"pass over rows {rows} of {edit['source']} ({edit.get('reason', 'skip')})"
        case "skip_steps":
            return f"drop what {edit['count']} steps would hold"
    return str(edit["edit"])


def _of_source(stats: dict[str, Any]) -> dict[str, Any]:
    keys = ("target_share", "token_share", "sample_share", "tokens", "samples", "is_suspended")
    return {key: stats[key] for key in keys}


def _weights(pairs: list[str]) -> dict[str, float]:
    from msd.errors import ConfigError

    found = {}
    for text in pairs:
        source, sign, weight = text.rpartition("=")
        try:
            found[source] = float(weight)
        except ValueError:
            sign = ""
        if not sign or not source:
            raise ConfigError(f"{text!r} is no SOURCE=WEIGHT; write for instance web=0.7 photos=0.3")
    return found


def _tell(step: int, text: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"at_step": step})
    else:
        output.stdout().print(text, markup=False, soft_wrap=True)
