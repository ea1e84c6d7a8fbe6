"""States outside a run: found in a file or a checkpoint, told in words, given an edit, written down."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msd.checkpoint import Snapshot, Store, open_store
from msd.core.checks import few
from msd.core.journal import PENDING, Edit, edits_from_state, with_pending
from msd.core.state import StateDict, unwrapped
from msd.core.unbounded import UNENDING_ROWS
from msd.errors import ConfigError, InputError, StateError
from msd.planner.edits import check_edit
from msd.runtime.checkpointing import journalled
from msd.runtime.state import Parts, read_state, run_state


@dataclass(frozen=True, slots=True)
class FoundState:
    """A state, and where it lay."""

    state: StateDict
    parts: Parts
    origin: str
    """For people."""
    store: Store | None = None
    snapshot: Snapshot | None = None
    """In a checkpoint."""
    since: tuple[Edit, ...] = ()
    """Journalled after it, for steps that come: a run that resumes there replays them."""


def find_state(where: str, *, step: int | None = None, storage_options: dict[str, Any] | None = None) -> FoundState:
    """Return a state from a file with one, from a snapshot, or from a checkpoint.

    Args:
        where: A file, or the folder or URL of a checkpoint.
        step: Of the snapshot in a checkpoint; the newest if it is left out.
        storage_options: Passed to fsspec for a URL.

    Raises:
        InputError: If there is nothing of the kind.
        StateError: If what is there is damaged, or no state.
    """
    if is_store(where):
        return _in_store(where, step, storage_options)
    if not os.path.exists(where):
        raise InputError(
            f"state {where!r} is not there, seen from {os.getcwd()}; give a file with a state or a checkpoint's folder "
            "(a relative checkpoint.path lies beside the configuration file)"
        )
    if step is not None:
        raise ConfigError(f"--step is for a checkpoint, and {where!r} is a file with one state; leave it out")
    try:
        content = Path(where).read_bytes()
    except OSError as error:
        raise InputError(f"state {where!r} cannot be read: {error.strerror}; give a file or a checkpoint") from None
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        raise StateError(f"{where} is no state: it is not JSON; give what state_dict() returned, as JSON") from None
    if isinstance(state, dict) and state.get("kind") == "msd-snapshot":
        state = state.get("state")
    state = unwrapped(state)
    return FoundState(state, read_state(state), where)


def is_store(where: str) -> bool:
    """Return whether a path is that of a checkpoint, not of a file: a URL or a folder."""
    return "://" in where or "::" in where or os.path.isdir(where)


def _in_store(where: str, step: int | None, storage_options: dict[str, Any] | None) -> FoundState:
    store = open_store(where, storage_options=storage_options)
    snapshot = store.newest() if step is None else store.find(step=step)
    if snapshot is None:
        raise InputError(f"there is no snapshot in {store.path}; give the path of a run's checkpoint, or a file")
    assert snapshot.state is not None, "a whole snapshot has one"
    parts = read_state(snapshot.state)
    waiting = tuple(edit for _, edit in journalled(store, snapshot) if edit.at_step >= parts.step)
    known = edits_from_state(parts.progress.get(PENDING, []))
    since = tuple(edit for edit in waiting if edit not in known)
    return FoundState(snapshot.state, parts, f"{store.path}: {snapshot.name}", store, snapshot, since)


def described(parts: Parts) -> dict[str, Any]:
    """Return what a state says, JSON-able: position by source, what waits, which edits act or wait."""
    progress = parts.progress
    waiting = Counter(piece["source"] for piece in progress["carry"])
    suspended = {edit["source"]: edit for edit in progress.get("edits", []) if edit["edit"] == "suspend"}
    return {
        "step": parts.step,
        "settings": {part: value for part, value in parts.identity.items() if not part.startswith("sources.")},
        "sources": {
            name: _source(entry, waiting[name], is_suspended=name in suspended)
            for name, entry in sorted(progress["sources"].items())
        },
        "samples_waiting": len(progress["carry"]),
        "edits_in_force": progress.get("edits", []),
        "edits_pending": progress.get(PENDING, []),
        "digest": parts.digest,
    }


def _source(entry: StateDict, waiting: int, *, is_suspended: bool) -> dict[str, Any]:
    epoch, row = divmod(entry["ordinal"], entry["rows"]) if entry["rows"] else (0, 0)
    return {
        "epoch": epoch,
        "row": row,
        "rows_per_epoch": None if entry["rows"] == UNENDING_ROWS else entry["rows"],
        "ordinal": entry["ordinal"],
        "part": entry["part"],
        "samples": entry["samples"],
        "tokens": entry["tokens"],
        "credit": entry["credit"],
        "waiting": waiting,
        "failed_lately": sum(count for _, count in entry["bad"]),
        **({} if entry.get("ledger") is None else {"ledger": entry["ledger"]}),
        "is": "ended" if entry["ended"] else "suspended" if is_suspended else "live",
    }


def with_edits(parts: Parts, edits: Iterable[Edit]) -> StateDict:
    """Return a state in which edits wait for their step.

    Raises:
        ConfigError: If one is of a source that the state does not know, or of a step that lies behind it, or says what
            no run would take.
    """
    edits = tuple(edits)
    sources = parts.progress["sources"]
    for edit in edits:
        name = getattr(edit, "source", None)
        if name is not None and name not in sources:
            raise ConfigError(f"the state has no source {name!r} (sources: {few(sorted(sources))}); name one of these")
        if edit.at_step < parts.step:
            raise ConfigError(f"step {edit.at_step} lies behind the state, which stands before step {parts.step}")
        check_edit(edit, dict.fromkeys(sources), {known: entry["rows"] for known, entry in sources.items()})
    return run_state(with_pending(parts.progress, edits), parts.identity)


def write_state(path: str, state: StateDict) -> None:
    """Write a state to a file, whole or not at all; it takes the place of one that is there.

    Raises:
        InputError: If it cannot be written.
    """
    target, temporary = Path(path), None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".msd-writing-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(json.dumps(state) + "\n")
            out.flush()
            os.fchmod(out.fileno(), 0o644)
            os.fsync(out.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise InputError(f"{path!r} cannot be written: {error.strerror}; give another path") from None
