"""Inputs of a run that are no functions of its configuration: what somebody decided while it ran.

A plan is computed from (configuration, seed, step, progress, metadata) and from these. An edit is journalled before
the first plan that it affects, at a step that nobody has planned; replayed in the same order it gives the same plans.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from msd.errors import StateError


class _Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="edit"):
    """What all edits say."""

    at_step: int
    """The first step that it affects."""
    who: str = ""
    """Who decided, for people."""
    when: str = ""
    """ISO 8601 time of the decision, for people; no input of anything."""
    noted_at: int = 0
    """The step that was to be planned next when it was journalled: positions before later steps tell of it, so that a
    step planned again has the same position after it. Set by the coordinator."""


class Suspend(_Edit, frozen=True, kw_only=True, tag="suspend"):
    """A source is not drawn from any more: its credit is frozen, its samples that wait stay in line."""

    source: str
    reason: str = ""


class Resume(_Edit, frozen=True, kw_only=True, tag="resume"):
    """A suspended source is drawn from again."""

    source: str


class SkipRows(_Edit, frozen=True, kw_only=True, tag="skip_rows"):
    """Rows of a source that are passed over, whatever their transforms would give.

    Rows that are drawn already when the edit takes effect stay where they are.
    """

    source: str
    first: int
    """Ordinal."""
    last: int
    """Ordinal, inclusive."""
    reason: str = "skip"
    """`skip`: somebody asked for it. `killed`: the row ended or hung its process twice; counts toward `max_rate`."""


class SkipSteps(_Edit, frozen=True, kw_only=True, tag="skip_steps"):
    """What the next `count` steps would hold is drawn and dropped: step `at_step` holds what came after them."""

    count: int


class SetWeights(_Edit, frozen=True, kw_only=True, tag="set_weights"):
    """Weights of the mixture from a step on, in place of those that its schedule says."""

    weights: dict[str, float]
    ramp: int = 0
    """Steps over which the weights in force change to these."""


Edit: TypeAlias = Suspend | Resume | SkipRows | SkipSteps | SetWeights


def edits_to_state(edits: Iterable[Edit]) -> list[dict[str, Any]]:
    """Return edits as JSON-able values."""
    return [msgspec.to_builtins(edit) for edit in edits]


def edits_from_state(entries: Any) -> tuple[Edit, ...]:
    """Return the edits that `edits_to_state` wrote.

    Raises:
        StateError: If the entries are no edits; names the first thing that is wrong.
    """
    try:
        return tuple(msgspec.convert(entries, list[Edit], strict=True))
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise StateError(f"the journal is damaged ({error}); use an earlier checkpoint") from None
