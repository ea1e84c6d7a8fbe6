"""What may change between a run and the one that goes on from its state: the rules, and how a difference is told."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msd.core.state import StateDict

Rule = Literal["allowed", "forced", "refused"]
"""allowed: the run goes on with the new value. forced: only where the user says so. refused: the state would lie."""

ABSENT = object()
_SOURCES = "sources."


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of what a run depends on that is another in the state."""

    part: str
    """As in a configuration: `batch.last`, `sources.web.transforms`."""
    saved: Any
    """`ABSENT` if the state says nothing of it."""
    here: Any
    rule: Rule
    why: str
    """What the change does, or would break."""

    @property
    def is_addition(self) -> bool:
        """Whether only this run has it."""
        return self.saved is ABSENT

    def __str__(self) -> str:
        if self.part.startswith(_SOURCES):
            return self._of_source()
        if ABSENT in (self.saved, self.here):
            here, there = ("in this run", "in the state") if self.is_addition else ("in the state", "in this run")
            return f"{self.part} is {_value(self.here if self.is_addition else self.saved)} {here} and not set {there}"
        return f"{self.part} is {_value(self.here)} here and {_value(self.saved)} in the state"

    def _of_source(self) -> str:
        if ABSENT in (self.saved, self.here):
            here, there = ("in this run", "in the state") if self.is_addition else ("in the state", "in this run")
            return f"{self.part} is {here} and not {there}"
        made_of = _FINGERPRINTS.get(self.part.rpartition(".")[2])
        if made_of is None:
            return f"{self.part} is {_value(self.here)} here and {_value(self.saved)} in the state"
        return f"{self.part} is another than in the state ({made_of})"


_FINGERPRINTS = {
    "data": "other files or rows: names, sizes, row counts or the split",
    "transforms": "a transform, its tokenizer, function or version, or overflow",
}
"""Part of a source to what it was made of; its value says nothing to a reader."""

_NEW_STEPS = "steps from here on are made by the new value; what was delivered stays as it was"

RULES: Mapping[str, tuple[Rule, str]] = {
    "seed": ("forced", "rows come in another order from here on, so some come twice in this epoch and some not at all"),
    "mixture.weights": ("allowed", _NEW_STEPS),
    "mixture.schedule": ("allowed", "its stages count from the run's first step, whenever they were written"),
    "mixture.mode": ("allowed", _NEW_STEPS),
    "mixture.temperature": ("allowed", _NEW_STEPS),
    "mixture.clock": ("allowed", "the schedule stands where the new clock does"),
    "mixture.unit": ("refused", "what sources are owed is counted in it"),
    "mixture.feedback": ("forced", "weights that follow from reports are those of the new function"),
    "num_microbatches": ("refused", "the schedule's clock counts microbatches and would jump; use mixture.clock: step"),
    "batch.sequence_length": ("refused", "samples that wait were cut at it; for another length use batch.schedule"),
    "batch.schedule": ("refused", "samples that wait were cut at its longest length"),
    "batch.tokens_per_step": ("refused", "samples that wait were drawn for it"),
    "batch.global_batch_size": ("forced", "steps from here on hold another number of sequences"),
    "batch.packing.method": ("refused", "samples that wait were cut, or kept whole, for it"),
    "batch.packing.lookahead": ("forced", "steps from here on hold other samples"),
    "batch.packing.objective": ("forced", "steps from here on hold other samples"),
    "batch.packing.max_age": ("forced", "steps from here on hold other samples"),
    "batch.limits": ("forced", "samples that wait were taken under the old limits"),
    "batch.oversize": ("forced", "samples from here on are treated by the new value"),
    "batch.last": ("forced", "the run ends with other steps"),
}
"""By part: the rule of a change, and why."""

_SOURCE_RULES: Mapping[str, tuple[Rule, str]] = {
    "data": ("refused", "rows would not be where the state says; add new files as a source of their own"),
    "order": ("refused", "rows would not be where the state says: shuffle, window and block_bytes are part of it"),
    "transforms": ("forced", "rows from here on are made by the new ones; samples of it that wait are dropped"),
    "end": ("allowed", "the source ends by the new value"),
}
_UNKNOWN: tuple[Rule, str] = ("refused", "this release does not know what it would change")


def compare(saved: StateDict, here: StateDict, *, ended: Collection[str] = ()) -> tuple[Difference, ...]:
    """Return how what a run depends on differs from what a state was saved under, each with its rule.

    Args:
        saved: The identity in the state; see `msd.build.identity`.
        here: This run's.
        ended: Sources that have ended where the state was saved.
    """
    found = []
    added, removed = _sources(here) - _sources(saved), _sources(saved) - _sources(here)
    for name in sorted(removed):
        found.append(Difference(f"{_SOURCES}{name}", True, ABSENT, "allowed", _REMOVED))
    for name in sorted(added):
        found.append(Difference(f"{_SOURCES}{name}", ABSENT, True, "allowed", "a new source begins at its first row"))
    whole = {f"{_SOURCES}{name}." for name in added | removed}
    for part in {**here, **saved}:
        before, now = saved.get(part, ABSENT), here.get(part, ABSENT)
        if before == now or (part.startswith(_SOURCES) and f"{part.rpartition('.')[0]}." in whole):
            continue
        found.append(Difference(part, before, now, *_rule(part, before, now, ended)))
    return tuple(found)


_REMOVED = "what it was owed goes to the others; samples of it that wait are dropped"


def _rule(part: str, before: Any, now: Any, ended: Collection[str]) -> tuple[Rule, str]:
    if part.startswith(_SOURCES):
        name, _, what = part.removeprefix(_SOURCES).rpartition(".")
        if what == "end" and name in ended:
            return "refused", "the source has ended already; add its data as a source of another name to go on with it"
        return _SOURCE_RULES.get(what, _UNKNOWN)
    if part == "num_microbatches" and ABSENT in (before, now):
        return "allowed", "the schedule stands where the new clock does"
    if part == "mixture.feedback" and before is ABSENT:
        return "allowed", "nothing was reported yet"
    return RULES.get(part, _UNKNOWN)


def told(differences: Iterable[Difference]) -> str:
    """Return differences as one line."""
    return "; ".join(f"{difference} ({difference.why})" for difference in differences)


def _sources(identity: StateDict) -> set[str]:
    parts = (part for part in identity if part.startswith(_SOURCES))
    return {part.removeprefix(_SOURCES).rpartition(".")[0] for part in parts}


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
