"""The op of a graph that says how a step's sequences are filled."""

from dataclasses import dataclass, replace
from typing import Literal

from msd.core.checks import whole_number
from msd.errors import ConfigError
from msd.planner.batch_schedule import BatchSchedule
from msd.planner.primitives.pack.limits import NO_LIMITS, Limits

METHODS = ("best_fit", "first_fit_decreasing", "concat", "none")
OBJECTIVES = ("fill", "cost")
LEAST_AGE = {"first_fit_decreasing": 2}
"""Steps that a sample may have to wait whatever else is said; 1 for the other methods."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Op of a graph: how a step's sequences are filled."""

    method: Literal["best_fit", "first_fit_decreasing", "concat", "none"]
    num_sequences: int
    sequence_length: int
    document_multiple: int
    lookahead: int
    objective: Literal["fill", "cost"] = "fill"
    """Of `first_fit_decreasing`: the first sequence with room, or the one with the least attention."""
    max_age: int = 2
    """Steps that a sample may wait."""
    limits: Limits = NO_LIMITS
    oversize: Literal["error", "drop"] = "error"
    """What becomes of a sample that no sequence can hold."""
    max_tokens: int | None = None
    """Real tokens of a step; only `none` needs it, whose number of sequences then follows."""
    multiple_of: int = 1
    """The number of sequences is a multiple of this."""
    schedule: BatchSchedule | None = None
    """Sizes by step, in place of those above; None keeps them."""
    apart: int | None = None
    """Of `best_fit`: samples of at least so many tokens, and shorter ones, fill sequences of their own as long as there
    are empty ones; None makes no difference between them."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"pack has no method {self.method!r}; the methods are {', '.join(METHODS)}")
        for name in ("num_sequences", "sequence_length", "document_multiple", "lookahead", "max_age", "multiple_of"):
            value = whole_number(getattr(self, name), name=f"pack: {name}")
            if value < 1:
                raise ConfigError(f"pack: {name} must be at least 1, got {value}")
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"pack has no objective {self.objective!r}; the objectives are {', '.join(OBJECTIVES)}")
        if self.objective == "cost" and self.method != "first_fit_decreasing":
            raise ConfigError(
                f"pack: objective cost evens out attention of samples in hand, which {self.method} has not; set "
                "method: first_fit_decreasing"
            )
        if self.apart is not None:
            if self.method != "best_fit":
                raise ConfigError(f"pack: apart is of method best_fit, got method {self.method}; set best_fit")
            if whole_number(self.apart, name="pack: apart") < 2:
                raise ConfigError(f"pack: apart must be at least 2 tokens, got {self.apart}")
        least = LEAST_AGE.get(self.method, 1)
        if self.max_age < least:
            raise ConfigError(f"pack: {self.method} needs max_age of at least {least}, got {self.max_age}")

    @property
    def cuts(self) -> bool:
        """Whether a part may be cut at the end of a sequence."""
        return self.method == "concat"

    @property
    def needs_age(self) -> bool:
        """Whether packing asks how long a sample has waited."""
        return self.method == "first_fit_decreasing"

    @property
    def may_cut(self) -> bool:
        """Whether parts may be cut at any step, at the end of a sequence or to the length of a stage."""
        return self.cuts or (self.schedule is not None and len(self.schedule.lengths) > 1)

    @property
    def longest(self) -> int:
        """Length of a sequence in the step where it is longest."""
        return self.sequence_length if self.schedule is None else max(self.schedule.lengths)

    @property
    def most_carried(self) -> int:
        """A number of samples that no more can wait between two steps, whatever sizes steps had before."""
        tokens = self.num_sequences * self.sequence_length if self.schedule is None else self.schedule.most_tokens
        return 2 * tokens // self.document_multiple + self.multiple_of

    def at(self, step: int) -> "Pack":
        """Return the op with the sizes that hold at a step."""
        if self.schedule is None:
            return self
        sizes = self.schedule.at(step)
        return replace(
            self,
            num_sequences=sizes.num_sequences,
            sequence_length=sizes.sequence_length,
            lookahead=sizes.lookahead,
            max_tokens=sizes.max_tokens,
            multiple_of=self.schedule.multiple_of,
            schedule=None,
        )

    def __str__(self) -> str:
        shown = [repr(self.method), f"{self.num_sequences} x {self.sequence_length}", f"lookahead={self.lookahead}"]
        if self.method == "first_fit_decreasing":
            shown += [f"objective={self.objective!r}", f"max_age={self.max_age}"]
        if self.apart is not None:
            shown.append(f"apart={self.apart}")
        if self.limits:
            shown.append(f"limits: {self.limits}")
        if self.schedule is not None:
            shown.append(str(self.schedule))
        return f"pack({', '.join(shown)})"
