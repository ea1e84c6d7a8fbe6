"""What a client's `state_dict` holds: the planner's progress, and what it is a progress of."""

from typing import Any

from msd.core.seeds import ORDER_VERSION
from msd.core.state import StateDict, expect_state
from msd.errors import StateError

STATE_VERSION = 1


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
    }


def progress_of(state: Any, identity: StateDict) -> StateDict:
    """Return the planner's progress from a state that a user gives.

    Raises:
        StateError: If it is no state of ours, or of another configuration or data: naming the parts that differ.
    """
    expect_state(state, kind="msd", version=STATE_VERSION, order_version=ORDER_VERSION)
    held, progress = state.get("identity"), state.get("planner")
    if not isinstance(held, dict) or not isinstance(progress, dict):
        raise StateError("cannot resume: the state is incomplete; pass what state_dict() returned, unchanged")
    differing = sorted(part for part in {**held, **identity} if held.get(part) != identity.get(part))
    if differing:
        raise StateError(
            f"cannot resume: {', '.join(differing)} differ from the run that saved the state; use the configuration "
            "and data it was saved with"
        )
    return progress
