"""What a state is: a small JSON-able dictionary that says whose it is, and is refused by name when it is not ours."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from msd.errors import StateError

StateDict: TypeAlias = dict[str, Any]
"""JSON-able: strings, integers, floats, booleans, None, lists and dictionaries with string keys."""


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a JSON-able value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


WRAPPED = "msd"
"""The one key of a state in which all is one text: for stores that keep each leaf of a dictionary under its path."""


def wrapped(state: StateDict) -> StateDict:
    """Return a state with one key and one text: what it looks like does not change with the position."""
    return {WRAPPED: canonical_json(state)}


def unwrapped(state: Any) -> Any:
    """Return what `wrapped` was given; anything else is returned as it is, for whoever checks states.

    Raises:
        StateError: If the text is no JSON.
    """
    if not isinstance(state, Mapping) or set(state) != {WRAPPED} or not isinstance(state[WRAPPED], str):
        return state
    try:
        return json.loads(state[WRAPPED])
    except (ValueError, RecursionError):
        raise StateError("cannot resume: the text of the state is no JSON; pass what state_dict() returned") from None


def fingerprint(value: Any) -> str:
    """Return a short identity of a JSON-able value: equal values, equal fingerprints, on every machine."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=12).hexdigest()


def expect_state(state: StateDict, **expected: Any) -> None:
    """Raise `StateError` unless `state` has each expected entry with the expected value.

    Raises:
        StateError: Naming the first entry that is missing or differs, with both values.
    """
    for key, wanted in expected.items():
        if not isinstance(state, dict) or key not in state:
            raise StateError(f"cannot resume: the state has no {key!r}; pass what state_dict() returned, unchanged")
        if state[key] != wanted:
            raise StateError(f"cannot resume: the state has {key}={state[key]!r}, this run has {key}={wanted!r}")
