"""`msd state show|diff|verify|skip`: what a saved state says, whether a run can go on from it, and repairs of it."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import Json, Storage, storage_options
from msd.cli.state_tables import print_differences, print_files, print_state, told

if TYPE_CHECKING:
    from msd.checkpoint import Entry, Snapshot, Store
    from msd.core.journal import Edit
    from msd.core.state import StateDict
    from msd.runtime.statefile import FoundState

app = typer.Typer(
    help="Look at a saved state, compare it, check a checkpoint, or leave steps or rows out of what comes.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
StatePath = Annotated[
    str, typer.Argument(metavar="STATE", help="A file with a state, or a checkpoint's folder or URL.")
]
Step = Annotated[int | None, typer.Option(min=0, help="Of the snapshot in a checkpoint; the newest without it.")]


@app.command()
def show(
    state: StatePath,
    step: Step = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the state itself there; - prints it.")
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Print what a state says: position of each source, what waits, which edits act; or write one to load."""
    from msd.runtime.statefile import described, find_state, write_state

    found = find_state(state, step=step, storage_options=storage_options(storage))
    if out == "-":
        output.print_json(found.state)
        return
    if out is not None:
        write_state(out, found.state)
        output.note(f"the state of step {found.parts.step} is in {out}; load it on every rank to go on there")
        return
    shown = {"origin": found.origin, "bytes": _size(found.state), **_saved(found), **described(found.parts)}
    shown["edits_journalled_since"] = _as_dicts(found.since)
    if as_json:
        output.print_json(shown)
    else:
        print_state(shown)


@app.command()
def diff(
    state: StatePath,
    other: Annotated[str, typer.Argument(metavar="STATE|CONFIG", help="Another state, or a configuration (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Settings that win over the configuration's.")
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> int:
    """Print how a configuration or another state differs from a state, and whether a run may go on over that.

    Status 1 if it may not: something is refused, or needs force.
    """
    from msd.runtime.changes import compare
    from msd.runtime.statefile import find_state

    options = storage_options(storage)
    found = find_state(state, storage_options=options)
    if other.endswith((".yaml", ".yml")):
        here, moved = _identity_of(other, overrides), []
    else:
        compared = find_state(other, storage_options=options)
        here, moved = compared.parts.identity, _moved(found, compared)
    differences = compare(found.parts.identity, here, ended=found.parts.ended)
    hindered = [difference.rule for difference in differences if difference.rule != "allowed"]
    if as_json:
        output.print_json({"differences": [told(one) for one in differences], "positions": moved})
    else:
        print_differences(f"{other}, against {found.origin}", differences, moved)
    return 1 if hindered else 0


@app.command()
def verify(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Folder or URL.")],
    storage: Storage = None,
    as_json: Json = False,
) -> int:
    """Check every snapshot and journal entry of a checkpoint, and tell who holds it. Status 1 if one is damaged."""
    from msd.checkpoint import open_store
    from msd.errors import InputError

    store = open_store(checkpoint, storage_options=storage_options(storage))
    snapshots, entries = store.snapshots(), store.entries()
    if not snapshots and not entries:
        raise InputError(
            f"there is no snapshot in {store.path}; give the path of a run's checkpoint "
            "(a relative checkpoint.path lies beside the configuration file)"
        )
    files = [
        *(_checked(one, step=one.step, problem=one.why_not or _problem(one.state)) for one in snapshots),
        *(_checked(one, step=None, problem=one.why_not) for one in entries),
    ]
    lease = _lease(store)
    if as_json:
        output.print_json({"path": store.path, "files": files, "lease": lease})
    else:
        print_files(store.path, files)
        held = "nobody holds it" if lease is None else f"held by run {lease['run']} ({lease['owner_is']})"
        output.note(f"{held}; snapshots: {len(snapshots)}, journal entries: {len(entries)}")
    return 1 if any(file["problem"] for file in files) else 0


@app.command()
def skip(
    state: StatePath,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="Draw and drop what the next N steps hold.")
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE:FIRST-LAST", help="Pass over rows of a source, by ordinal; repeat it."),
    ] = None,
    step: Step = None,
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the new state there.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Put it in the place of the old one.")] = False,
    storage: Storage = None,
) -> None:
    """Write a state that leaves steps or rows out of what comes; every later resume knows of it."""
    from msd.core.journal import SkipRows, SkipSteps
    from msd.errors import ConfigError
    from msd.runtime.statefile import find_state, with_edits, write_state

    if (out is None) == (not in_place):
        raise ConfigError("say where the new state goes: --out FILE, or --in-place")
    if steps is None and not rows:
        raise ConfigError("say what to leave out: --steps N, or --rows SOURCE:FIRST-LAST")
    found = find_state(state, step=step, storage_options=storage_options(storage))
    at, when = found.parts.step, datetime.now(UTC).isoformat(timespec="milliseconds")
    edits: list[Edit] = []
    for text in rows or []:
        name, first, last = _row_range(text)
        edits.append(SkipRows(at_step=at, who="msd state skip", when=when, source=name, first=first, last=last))
    if steps is not None:
        edits.append(SkipSteps(at_step=at, who="msd state skip", when=when, count=steps))
    changed = with_edits(found.parts, edits)
    if out is not None:
        write_state(out, changed)
        output.note(f"written to {out}: load it on every rank, and step {at} comes without what is skipped")
    elif found.store is None:
        write_state(state, changed)
        output.note(f"{state} is changed: step {at} comes without what is skipped")
    else:
        output.note(f"saved as {_save(found, changed)}: a run that resumes there goes on without what is skipped")


def _save(found: "FoundState", changed: "StateDict") -> str:
    """Save a changed state as a checkpoint's newest snapshot; only where no run lives."""
    from msd.checkpoint import Lease

    assert found.store is not None
    assert found.snapshot is not None
    lease = Lease(found.store.folder, run="msd-state-skip")
    lease.acquire()
    try:
        return found.store.save(
            changed,
            step=found.parts.step,
            run=found.snapshot.run,
            lineage=found.snapshot.lineage,
            journal=found.snapshot.journal,
        ).name
    finally:
        lease.release()


def _row_range(text: str) -> tuple[str, int, int]:
    from msd.errors import ConfigError

    name, _, span = text.rpartition(":")
    first, _, last = span.partition("-")
    if not name or not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) < int(first):
        raise ConfigError(f"--rows {text!r} is no range; write SOURCE:FIRST-LAST, for instance web:1200-1300")
    return name, int(first), int(last or first)


def _identity_of(path: str, overrides: list[str] | None) -> "StateDict":
    from pathlib import Path

    from msd.build import build_chains, build_orders
    from msd.cli.indexing import indexed
    from msd.cli.options import read_config
    from msd.config.identity import identity

    config = read_config(Path(path), overrides, None)
    return identity(config, build_orders(config, indexed(config)), build_chains(config))


def _moved(found: "FoundState", compared: "FoundState") -> list[dict[str, Any]]:
    """Return where sources stand in two states, if that differs."""
    before, after = found.parts.progress["sources"], compared.parts.progress["sources"]
    both = sorted(set(before) & set(after))
    pairs = [(name, before[name]["ordinal"], after[name]["ordinal"]) for name in both]
    steps = [] if found.parts.step == compared.parts.step else [("", found.parts.step, compared.parts.step)]
    moved = [(name, first, second) for name, first, second in pairs if first != second]
    return [
        {"what": f"ordinal of {name}" if name else "step", "here": second, "state": first}
        for name, first, second in [*steps, *moved]
    ]


def _checked(file: "Snapshot | Entry", *, step: int | None, problem: str) -> dict[str, Any]:
    return {
        "name": file.name,
        "step": step,
        "when": file.when,
        "run": file.run,
        "bytes": file.size,
        "problem": problem,
    }


def _lease(store: "Store") -> dict[str, Any] | None:
    import time

    from msd.checkpoint.lease import describe, liveness, read_owner

    owner = read_owner(store.folder)
    return None if owner is None else {**describe(owner), "owner_is": liveness(owner, now=time.time())}


def _problem(state: "StateDict | None") -> str:
    """Return what is wrong with the state in a whole snapshot."""
    from msd.errors import StateError
    from msd.runtime.state import read_state

    try:
        read_state(state)
    except StateError as error:
        return str(error)
    return ""


def _size(state: "StateDict") -> int:
    import json

    return len(json.dumps(state))


def _saved(found: "FoundState") -> dict[str, Any]:
    snapshot = found.snapshot
    return {} if snapshot is None else {"saved": snapshot.when, "run": snapshot.run, "snapshot": snapshot.name}


def _as_dicts(edits: "tuple[Edit, ...]") -> list[dict[str, Any]]:
    from msd.core.journal import edits_to_state

    return edits_to_state(edits)
