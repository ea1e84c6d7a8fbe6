"""What each constructor was told: the steps it was assigned, those it may drop, where the run ends."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msd.coordinator.commands import Assign, Command, Drop, Finish, Rewind
from msd.coordinator.generations import Generations
from msd.coordinator.placement import Owners, Placement
from msd.core.plan import StepPlan


@dataclass(slots=True)
class _Constructor:
    ranks: tuple[int, ...]
    held_bytes: int = 0
    assigned: set[int] = field(default_factory=set)
    dropped_through: int = -1
    is_told_of_end: bool = False
    is_lost: bool = False


class Handout:
    """Gives constructors the steps that their connected ranks come to next. Looks only at those that were stirred."""

    def __init__(self, constructors: Mapping[str, tuple[int, ...]], *, depth: int, held_bytes: int) -> None:
        """Begin with nothing handed out.

        Args:
            constructors: The ranks that each constructor serves.
            depth: Steps that a constructor is given from the one on that a rank asks for.
            held_bytes: Payload above which a constructor is given no step that is not asked for yet.
        """
        self._constructors = {name: _Constructor(ranks) for name, ranks in constructors.items()}
        self._depth = depth
        self._held_bytes = held_bytes
        self._stirred = dict.fromkeys(self._constructors)
        self._number = 0
        self._bucket_of: dict[int, int] = {}
        self._consumers_B: tuple[tuple[int, ...], ...] = ()
        self._owners: dict[int, list[Owners]] = {}

    def __len__(self) -> int:
        return len(self._constructors)

    def stir(self, name: str | None = None) -> None:
        """Note that there may be something to tell a constructor, or all."""
        if name is None:
            self._stirred = dict.fromkeys(self._constructors)
        elif name in self._constructors:
            self._stirred[name] = None

    def lose(self, name: str) -> None:
        """Note that a constructor is gone: it is told nothing until it comes again."""
        if name in self._constructors:
            self._constructors[name] = _Constructor(self._constructors[name].ranks, is_lost=True)

    def join(self, name: str, generation: int) -> list[Command]:
        """Note that a constructor came which holds nothing; return what tells it of the generation."""
        if name not in self._constructors:
            return []
        self._constructors[name] = _Constructor(self._constructors[name].ranks)
        self.stir(name)
        return [Rewind(name, generation)]

    def hold(self, name: str, nbytes: int) -> None:
        """Note what a constructor holds."""
        if name in self._constructors:
            self._constructors[name].held_bytes = nbytes
            self.stir(name)

    def forget(self, steps: Iterable[int]) -> None:
        """Note that the plans of steps are no longer held."""
        for step in steps:
            self._owners.pop(step, None)

    def move(self) -> None:
        """Note that rows have other owners: what is still to come is assigned once more."""
        self._owners.clear()
        for constructor in self._constructors.values():
            constructor.assigned.clear()
        self.stir()

    def rewind(self, generation: int) -> list[Command]:
        """Return what tells constructors of a generation: of it they hold nothing as far as is known."""
        self._owners.clear()
        for constructor in self._constructors.values():
            constructor.assigned.clear()
            constructor.dropped_through, constructor.is_told_of_end = -1, False
        self.stir()
        return [Rewind(name, generation) for name, constructor in self._constructors.items() if not constructor.is_lost]

    def commands(
        self,
        generations: Generations,
        plan_of: Callable[[int], StepPlan | None],
        end: int | None,
        placement: Placement,
        owners_of: Callable[[StepPlan], list[Owners]],
    ) -> list[Command]:
        """Return what to tell the constructors that were stirred, the soonest step first."""
        assigns: list[Assign] = []
        others: list[Command] = []
        for name in self._stirred:
            constructor = self._constructors[name]
            if constructor.is_lost:
                continue
            soonest = generations.next_steps(name)
            for step in sorted({step for first in soonest for step in range(first, first + self._depth)}):
                if step in constructor.assigned or (end is not None and step >= end):
                    continue
                if constructor.held_bytes > self._held_bytes and step not in soonest:
                    continue
                plan = plan_of(step)
                if plan is not None:
                    self._number += 1
                    constructor.assigned.add(step)
                    constructor.dropped_through = min(constructor.dropped_through, step - 1)
                    owners = self._owners_for(constructor, plan, owners_of)
                    assigns.append(Assign(name, generations.generation, plan, owners, placement.version, self._number))
            if end is not None and not constructor.is_told_of_end:
                constructor.is_told_of_end = True
                others.append(Finish(name, generations.generation, end))
            # The step taken last is kept: a rank whose connection broke may ask for it once more.
            through = min(soonest) - 2 if soonest else -1
            if through > constructor.dropped_through:
                self._number += 1
                constructor.dropped_through = through
                constructor.assigned = {step for step in constructor.assigned if step > through}
                others.append(Drop(name, generations.generation, through, self._number))
        self._stirred = {}
        return [*sorted(assigns, key=lambda assign: (assign.plan.step, assign.number)), *others]

    def _owners_for(
        self, constructor: _Constructor, plan: StepPlan, owners_of: Callable[[StepPlan], list[Owners]]
    ) -> Owners:
        if plan.step not in self._owners:
            self._owners[plan.step] = owners_of(plan)
        if plan.consumers_B is not self._consumers_B:
            self._consumers_B = plan.consumers_B
            self._bucket_of = {rank: bucket for bucket, ranks in enumerate(plan.consumers_B) for rank in ranks}
        of_bucket = self._owners[plan.step]
        buckets = {self._bucket_of[rank] for rank in constructor.ranks}
        if plan.encoder is not None:
            buckets.update(plan.bucket_D[plan.encoder.documents_of(*constructor.ranks)].tolist())
        if len(buckets) == 1:
            return of_bucket[buckets.pop()]
        merged: dict[str, dict[int, tuple[str, int]]] = {}
        for bucket in sorted(buckets):
            for source, places in of_bucket[bucket].items():
                merged.setdefault(source, {}).update(places)
        return merged
