"""What a client's `state_dict` holds: the planner's progress, and what it is a progress of."""

import json
from typing import Any

from msd.core.seeds import ORDER_VERSION
from msd.core.state import StateDict, expect_state, fingerprint
from msd.errors import StateError

STATE_VERSION = 2
"""2: states carry a digest."""


def run_state(progress: StateDict, identity: StateDict) -> StateDict:
    """Return the state that a user saves.

    Args:
        progress: The planner's, at a step boundary.
        identity: What order and content depend on, part by part; see `msd.build.identity`.
    """
    return {
        "kind": "msd",
        "version": STATE_VERSION,
        "order_version": ORDER_VERSION,
        "identity": identity,
        "planner": progress,
        "digest": _digest(identity, progress),
    }


def progress_of(state: Any, identity: StateDict) -> StateDict:
    """Return the planner's progress from a state that a user gives.

    Raises:
        StateError: If it is no state of ours, is not as it was saved, or is of another configuration or data: naming
            every setting that differs with both values, and the part of a source that does.
    """
    expect_state(state, kind="msd", version=STATE_VERSION, order_version=ORDER_VERSION)
    held, progress = state.get("identity"), state.get("planner")
    if not isinstance(held, dict) or not isinstance(progress, dict):
        raise StateError("cannot resume: the state is incomplete; pass what state_dict() returned, unchanged")
    try:
        is_whole = state.get("digest") == _digest(held, progress)
    except (TypeError, ValueError, RecursionError):  # No JSON: not what state_dict() returned either.
        is_whole = False
    if not is_whole:
        raise StateError("cannot resume: the state was changed after it was saved; pass what state_dict() returned")
    parts = [part for part in {**identity, **held} if _differs(part, identity, held)]
    if parts:
        differing = "; ".join(dict.fromkeys(_difference(part, identity, held) for part in parts))
        raise StateError(f"cannot resume: {differing}; use the configuration and data that the state was saved with")
    return progress


def _digest(identity: StateDict, progress: StateDict) -> str:
    return fingerprint({"identity": identity, "planner": progress})


_FINGERPRINTS = {
    "data": "other files or rows: names, sizes, row counts or the split",
    "order": "shuffle, max_epochs, on_exhausted or mixture.repetitions",
    "transforms": "a transform, its tokenizer, function or version, or overflow",
}
"""Part of a source to what it was made of; its value says nothing to a reader."""


def _differs(part: str, identity: StateDict, held: StateDict) -> bool:
    return part not in identity or part not in held or bool(identity[part] != held[part])


def _difference(part: str, identity: StateDict, held: StateDict) -> str:
    if part not in identity or part not in held:
        here, saved = ("in this run", "in the state") if part in identity else ("in the state", "in this run")
        if part.startswith("sources."):
            return f"{part.rpartition('.')[0]} is {here} and not {saved}"
        return f"{part} is {_value({**held, **identity}[part])} {here} and not set {saved}"
    if part.startswith("sources."):
        made_of = _FINGERPRINTS.get(part.rpartition(".")[2], "what it depends on")
        return f"{part} is another than in the state ({made_of})"
    return f"{part} is {_value(identity[part])} here and {_value(held[part])} in the state"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
