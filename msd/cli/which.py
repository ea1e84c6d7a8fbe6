"""`msd which CONFIG --step K`: which rows a step holds, and which ranks they go to."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, Storage, read_config, storage_options

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.order import SourceOrder
    from msd.core.plan import StepPlan
    from msd.core.state import StateDict
    from msd.planner.planner import Planner


def which(
    config_path: ConfigPath,
    overrides: Overrides = None,
    step: Annotated[int, typer.Option(min=0, help="Which step.")] = 0,
    rank: Annotated[int | None, typer.Option(min=0, help="Only what this rank holds.", show_default=False)] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="A saved state, or a run's checkpoint: begin there and heed its edits, not at step 0.",
            show_default=False,
        ),
    ] = None,
    storage: Storage = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """List the documents of one step: source, file, row, where in the row, and where they are placed.

    The step is planned again, with the configuration of the run; of one that is under way, engine.which(step) tells.
    """
    from msd.build import build_loaders, build_orders, build_planner
    from msd.cli.indexing import indexed
    from msd.loader.ledgers import expect_ledgers
    from msd.runtime.origins import with_origins
    from msd.runtime.record import of_rank, provenance

    config = read_config(config_path, overrides, sets)
    if rank is not None:
        config.place.check_rank(rank)
    orders = build_orders(config, indexed(config))
    planner = build_planner(config, orders)
    if state is not None:
        position = _position(config, orders, state, step, storage_options(storage))
        planner.load_state_dict(position)
        expect_ledgers(orders, position)
    loaders = build_loaders(config, orders)
    try:
        with output.progress_bar() as progress:
            task = progress.add_task("planning", total=step + 1 - planner.step)
            plan = _planned(planner, loaders, step, lambda: progress.advance(task))
    finally:
        for loader in loaders.values():
            loader.close()
    entries = with_origins(config, orders, of_rank(provenance(plan, orders), rank))
    if as_json:
        output.print_json({"step": step, "documents": entries})
        return
    packed_before = any("origin" in entry for entry in entries)
    columns = ("sample", "file", "row", "epoch", "tokens", "ranks", "microbatch", "offset")
    caption = "tokens: of the row, from-to if it was cut; offset: of the document in the microbatch's row"
    output.print_table(
        f"step {step}" + ("" if rank is None else f" · rank {rank}") + f" · {len(entries)} documents",
        ("sample", "was", *columns[1:]) if packed_before else columns,
        [_row(entry, packed_before=packed_before) for entry in entries],
        text_columns=3 if packed_before else 2,
        caption=f"was: when it was packed, [from its first token on; {caption}" if packed_before else caption,
    )
    for remark in plan.notes:
        output.note(remark)


def _position(
    config: "Config", orders: "dict[str, SourceOrder]", where: str, step: int, options: dict[str, Any] | None
) -> "StateDict":
    """Return the saved position that is nearest before a step, with the edits that were journalled after it."""
    from msd.build import build_chains
    from msd.checkpoint import open_store
    from msd.config.identity import identity
    from msd.core.journal import with_pending
    from msd.errors import InputError
    from msd.runtime.state import progress_of
    from msd.runtime.statefile import find_state, is_store

    saved = None
    if is_store(where):
        store = open_store(where, storage_options=options)
        steps = [one.step for one in store.snapshots() if one.step <= step and not one.why_not]
        if not steps:
            raise InputError(f"there is no snapshot of step {step} or before it in {where}; leave --state out")
        saved = max(steps)
    found = find_state(where, step=saved, storage_options=options)
    if found.parts.step > step:
        raise InputError(f"the state in {where} stands before step {found.parts.step}, after step {step}; leave it out")
    progress = progress_of(found.state, identity(config, orders, build_chains(config)))
    return with_pending(progress, found.since)


def _planned(planner: "Planner", loaders: Any, step: int, on_step: Any) -> "StepPlan":
    from msd.build import plan_steps
    from msd.errors import ConfigError

    last = "at once"
    for plan in plan_steps(planner, loaders, steps=step + 1 - planner.step):
        on_step()
        if plan.step == step:
            return plan
        last = f"with step {plan.step}"
    why = "; ".join(planner.closing_notes) or "its data ends"
    raise ConfigError(f"there is no step {step}: the run ends {last} ({why}); name an earlier --step")


def _was(entry: dict[str, Any]) -> str:
    """Return which sample a document of a packed sequence was."""
    origin = entry.get("origin")
    if origin is None:
        return "-"
    first = f"[{origin['first_token']}:" if origin["first_token"] else ""
    return f"{origin['source']}:{origin['ordinal']}.{origin['part']}{first}"


def _row(entry: dict[str, Any], *, packed_before: bool) -> tuple[str, ...]:
    ranks = entry["ranks"]
    some = ",".join(map(str, ranks[:4])) + (f" +{len(ranks) - 4}" if len(ranks) > 4 else "")
    start, length = entry["start"], entry["length"]
    return (
        f"{entry['source']}:{entry['ordinal']}.{entry['part']}",
        *((_was(entry),) if packed_before else ()),
        entry["shard"],
        str(entry["row"]),
        str(entry["epoch"]),
        f"{start}-{start + length}" if start else str(length),
        some,
        str(entry["microbatch"]),
        str(entry["offset"]),
    )
