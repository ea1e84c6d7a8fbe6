"""What came of a run that was disturbed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fault_ranks import Taken
from fault_schedule import Fault


@dataclass
class Struck:
    """A fault that was dealt."""

    fault: Fault
    at: float
    pids: tuple[int, ...]
    gap_s: float = 0.0
    """The longest that a rank waited for a step until the next fault."""


@dataclass
class Outcome:
    """What came of a run."""

    found: dict[tuple[int, int], str | None] = field(default_factory=dict)
    sample_ids: dict[tuple[int, int], tuple[tuple[str, int, int], ...]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)
    """Steps that a rank took twice, and not alike."""
    struck: list[Struck] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    """Of every step but the first of each rank."""
    took_s: float = 0.0
    """From the first step to the last."""
    left: list[str] = field(default_factory=list)
    """Processes and files that stayed."""

    def check(self, expected: dict[tuple[int, int], str | None]) -> None:
        """Raise `AssertionError` unless every rank had what it would have had undisturbed, and nothing stayed."""
        assert not self.unlike, self.unlike[:3]
        differing = sorted(key for key in {**expected, **self.found} if expected.get(key) != self.found.get(key))
        assert not differing, f"{len(differing)} of {len(expected)} differ, the first (step, rank) are {differing[:4]}"
        assert not self.left, self.left

    def read(self, taken_by: Mapping[int, Sequence[Taken]]) -> None:
        """Take in what each rank took."""
        for rank, all_taken in taken_by.items():
            for taken in all_taken:
                earlier = self.found.setdefault((taken.step, rank), taken.digest)
                if earlier != taken.digest:
                    self.unlike.append(f"step {taken.step} of rank {rank}: {earlier}, then {taken.digest}")
                self.sample_ids[taken.step, rank] = taken.sample_ids
            self.waits_s += [taken.wait_s for taken in all_taken[1:]]
        times = [taken.at for all_taken in taken_by.values() for taken in all_taken]
        self.took_s = max(times) - min(times)
        for number, struck in enumerate(self.struck):
            later = [other.at for other in self.struck[number + 1 :] if other.fault.at_step > struck.fault.at_step]
            until = min(later, default=float("inf"))
            waited = [one.wait_s for each in taken_by.values() for one in each if struck.at < one.at <= until]
            struck.gap_s = max(waited, default=0.0)
