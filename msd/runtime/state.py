"""What a client's `state_dict` holds: the planner's progress, and what it is a progress of."""

import json
import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msd.core.seeds import ORDER_VERSION
from msd.core.state import StateDict, canonical_json, expect_state, fingerprint, unwrapped
from msd.errors import StateError
from msd.runtime.changes import Difference, compare, told
from msd.runtime.encoding import joined_identity, pack_progress, packed, split_identity, unpack_progress, unpacked

STATE_VERSION = 3
"""3: what there is of every source is packed. 2: states carry a digest."""

FORCE = "force"
"""Key of a progress whose settings of the batch may differ from the run's, as far as samples that wait bear it."""

_LOG = logging.getLogger("msd")
_TOLD_KEPT = 64
_told: OrderedDict[tuple[str, str], None] = OrderedDict()
"""Of which states (and for which runs) the differences were told already: every rank loads the same."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A state that was read."""

    identity: StateDict
    """What it is a progress of; see `msd.build.identity`."""
    progress: StateDict
    """The planner's."""
    digest: str

    @property
    def step(self) -> int:
        """The step that comes next."""
        return int(self.progress["step"])

    @property
    def ended(self) -> frozenset[str]:
        """Sources that have given all they had."""
        sources = self.progress.get("sources")
        entries = sources.items() if isinstance(sources, dict) else ()
        return frozenset(name for name, entry in entries if isinstance(entry, dict) and entry.get("ended"))


def run_state(progress: StateDict, identity: StateDict) -> StateDict:
    """Return the state that a user saves.

    Args:
        progress: The planner's, at a step boundary.
        identity: What order and content depend on, part by part; see `msd.build.identity`.
    """
    written = _written(identity)
    planner = canonical_json(pack_progress({key: value for key, value in progress.items() if key != FORCE}))
    return {
        "kind": "msd",
        "version": STATE_VERSION,
        "order_version": ORDER_VERSION,
        "step": progress["step"],
        "identity": dict(written.settings),
        "packed": {"sources": written.packed, "planner": packed(planner)},
        "digest": _digest(written.texts, planner),
    }


def read_state(state: Any) -> Parts:
    """Return what a state says, whatever run it is of.

    Raises:
        StateError: If it is no state of ours, or not as it was saved.
    """
    state = unwrapped(state)
    state = unwrapped(state)
    _expect_readable(state)
    settings, texts = state.get("identity"), state.get("packed")
    if not isinstance(settings, dict) or not isinstance(texts, dict):
        raise StateError("cannot resume: the state is incomplete; pass what state_dict() returned, unchanged")
    try:
        sources, planner = unpacked(texts["sources"]), unpacked(texts["planner"])
        digest = _digest((canonical_json(settings), sources), planner)
        identity = joined_identity(settings, json.loads(sources))
        progress = unpack_progress(json.loads(planner))
        is_whole = state["digest"] == digest and _is_number(state["step"], progress["step"]) and len(texts) == 2
    except (KeyError, IndexError, TypeError, ValueError, RecursionError, AttributeError):
        is_whole = False  # No JSON, or other columns: not what state_dict() returned either.
    if not is_whole:
        raise StateError("cannot resume: the state was changed after it was saved; pass what state_dict() returned")
    return Parts(identity, progress, digest)


def progress_of(state: Any, identity: StateDict, *, force: bool = False) -> StateDict:
    """Return the planner's progress from a state that a user gives.

    Differences that are allowed are told in the log once, one line each.

    Args:
        state: As `state_dict()` returned it.
        identity: Of this run.
        force: Go on in spite of differences whose rule is `forced`; told in the log as warnings.

    Raises:
        StateError: If it is no state of ours, is not as it was saved, or is of another configuration or data: naming
            every part that differs, with both values, and what the change would break.
    """
    parts = read_state(state)
    differences = compare(parts.identity, identity, ended=parts.ended)
    refused = [found for found in differences if found.rule == "refused" or (found.rule == "forced" and not force)]
    if refused:
        raise StateError(f"cannot resume: {told(refused)}; {_remedy(refused, force=force)}")
    _tell(parts, identity, differences)
    return _bent(parts.progress, [found for found in differences if found.rule == "forced"])


def without_waiting(progress: StateDict, sources: Collection[str]) -> StateDict:
    """Return a progress in which no sample of some sources waits, and each of them begins with a whole row."""

    def at_row_start(entry: StateDict) -> StateDict:
        is_inside = bool(entry["part"] or entry.get("start"))
        kept = {field: value for field, value in entry.items() if field != "start"}
        return {**kept, "ordinal": entry["ordinal"] + is_inside, "part": 0}

    return {
        **progress,
        "sources": {
            name: at_row_start(entry) if name in sources else entry for name, entry in progress["sources"].items()
        },
        "carry": [piece for piece in progress["carry"] if piece["source"] not in sources],
    }


def _expect_readable(state: Any) -> None:
    version = state.get("version") if isinstance(state, dict) and state.get("kind") == "msd" else None
    if isinstance(version, int) and version > STATE_VERSION:
        raise StateError(
            f"cannot resume: the state is of version {version}, written by a later release of msd; this one reads "
            f"version {STATE_VERSION}: use the release that wrote it, or a later one"
        )
    expect_state(state, kind="msd", version=STATE_VERSION, order_version=ORDER_VERSION)


def _bent(progress: StateDict, forced: Sequence[Difference]) -> StateDict:
    """Return a progress with what a forced difference makes untrue left out."""
    parts = {difference.part for difference in forced}
    if "seed" in parts:
        progress = without_waiting(progress, progress["sources"])
    remade = {
        part.removeprefix("sources.").removesuffix(".transforms") for part in parts if part.startswith("sources.")
    }
    if remade:
        progress = without_waiting(progress, remade)
    if "mixture.feedback" in parts:
        progress = {key: value for key, value in progress.items() if key != "mixture"}
    if any(part.startswith("batch.") for part in parts):
        progress = {**progress, FORCE: True}
    return progress


def _remedy(refused: Sequence[Difference], *, force: bool) -> str:
    usual = "use the configuration and data that the state was saved with"
    can_be_forced = not force and all(difference.rule == "forced" for difference in refused)
    return f"{usual}, or load it with force=True" if can_be_forced else usual


def _tell(parts: Parts, identity: StateDict, differences: Sequence[Difference]) -> None:
    key = (parts.digest, fingerprint(identity))
    if not differences or key in _told:
        return
    _told[key] = None
    while len(_told) > _TOLD_KEPT:
        _told.popitem(last=False)
    for found in differences:
        level, how = (logging.WARNING, "forced") if found.rule == "forced" else (logging.INFO, "allowed")
        _LOG.log(level, "resume at step %d: %s (%s: %s)", parts.step, found, how, found.why)


def _is_number(found: Any, expected: Any) -> bool:
    return type(found) is int and found == expected


def _digest(identity: tuple[str, str], planner: str) -> str:
    return fingerprint([*identity, planner])


@dataclass(frozen=True, slots=True)
class _Written:
    """An identity as states write it: the same in each of a run."""

    of: StateDict
    settings: StateDict
    packed: str
    texts: tuple[str, str]
    """Settings, and columns of the sources, as JSON."""


_last_written: _Written | None = None


def _written(identity: StateDict) -> _Written:
    global _last_written
    last = _last_written
    if last is None or last.of is not identity:
        settings, columns = split_identity(identity)
        text = canonical_json(columns)
        last = _last_written = _Written(identity, settings, packed(text), (canonical_json(settings), text))
    return last
