"""What a constructor holds between the plan of a step and the ranks that take it. No I/O, no clock.

Messages may come late, twice and out of order: those of an older generation are refused, a repeated one changes
nothing, and of an assignment and a drop of the same step the one with the larger number speaks.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from msd.constructor.constructor import AssembledBucket, DataConstructor
from msd.constructor.encoder import encoded_by
from msd.core.batch import EncoderShare, RankBatch
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId, SampleSlab
from msd.core.state import StateDict
from msd.errors import EngineError

Owners: TypeAlias = Mapping[str, Mapping[int, tuple[str, int]]]
"""By source and ordinal: the host and partition that prepare the row."""

_Part: TypeAlias = tuple[Literal["rows", "images"], int]
"""What is assembled from samples: the rows of a bucket, or the images that a rank encodes apart from its rows."""


@dataclass(slots=True, eq=False)
class _Held:
    """One assigned step."""

    plan: StepPlan
    owners: Owners
    version: tuple[int, int]
    """(term, version of the placement) that named the owners."""
    number: tuple[int, int]
    """(term, number) of the newest message that assigned it."""
    bucket_of: dict[int, int]
    missing: dict[_Part, set[SampleId]]
    """Samples that have not come yet, for each part that is not assembled."""
    slabs: list[tuple[SampleSlab, set[_Part]]] = field(default_factory=list)
    """Payload, and the parts that still need it."""
    assembled: dict[int, AssembledBucket] = field(default_factory=dict)
    """By bucket."""
    shares: dict[int, tuple[EncoderShare, ...]] = field(default_factory=dict)
    """By rank."""

    @property
    def nbytes(self) -> int:
        rows = sum(bucket.nbytes for bucket in self.assembled.values())
        encoded = sum(share.nbytes for shares in self.shares.values() for share in shares)
        return sum(slab.nbytes for slab, _ in self.slabs) + rows + encoded

    def samples_for(self, part: _Part) -> Callable[[SampleId], Sample] | None:
        """Return where the samples of a part are found, or None while some are missing."""
        if self.missing[part]:
            return None
        slab_of = {sample_id: slab for slab, users in self.slabs if part in users for sample_id in slab.ids}
        return lambda sample_id: slab_of[sample_id].sample(sample_id)

    def finish(self, part: _Part) -> None:
        """Let go of the payload that only this part still needed."""
        del self.missing[part]
        for _, users in self.slabs:
            users.discard(part)
        self.slabs = [(slab, users) for slab, users in self.slabs if users]


class Shelf:
    """Steps under way for the ranks of one constructor. For one thread at a time."""

    def __init__(self, constructor: DataConstructor, ranks: Iterable[int]) -> None:
        """Hold nothing yet.

        Args:
            constructor: Assembles the rows.
            ranks: Those that are served here.
        """
        self.ranks = tuple(ranks)
        self.generation = 0
        self.end: int | None = None
        """The first step that does not exist, once it is known."""
        self._constructor = constructor
        self._held: dict[int, _Held] = {}
        self._drops: list[tuple[tuple[int, int], int]] = []
        """((term, number), through) of drops that a late assignment may still meet: `through` falls as numbers grow."""

    @property
    def held_steps(self) -> list[int]:
        """The steps that are held, in order."""
        return sorted(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of payload: samples that wait, and assembled rows."""
        return sum(held.nbytes for held in self._held.values())

    def assign(
        self, generation: int, plan: StepPlan, owners: Owners, version: int, *, number: int = 0, term: int = 0
    ) -> bool:
        """Take a step to assemble; return whether there is anything new in it.

        Args:
            generation: Of the run; an older one is refused, a newer one begins here and now.
            plan: The step.
            owners: Who prepares its rows.
            version: Of the placement that says so; an older one changes nothing.
            number: Of the message; see `msd.coordinator.commands.Assign`.
            term: Of the planner: each counts versions and numbers for itself, and of two the later one speaks.

        Raises:
            EngineError: If a planner planned the step otherwise than the one before it.
        """
        if not self._follow(generation):
            return False
        said, placed = (term, number), (term, version)
        if any(said < dropped and plan.step <= through for dropped, through in self._drops):
            return False
        held = self._held.get(plan.step)
        if held is not None:
            if said[0] > held.number[0] and plan.progress != held.plan.progress:
                raise EngineError(
                    f"step {plan.step} was planned again and is another step now: planning must depend on the "
                    "configuration, the seed and the data alone; see that strategy, cost functions and transforms do"
                )
            held.number = max(held.number, said)
            if placed <= held.version:
                return False
            held.owners, held.version = owners, placed
            return True
        bucket_of = {rank: plan.bucket_of(rank) for rank in self.ranks}
        missing: dict[_Part, set[SampleId]] = {
            ("rows", bucket): set(plan.sample_ids(bucket)) for bucket in sorted(set(bucket_of.values()))
        }
        if plan.encoder is not None:
            missing |= {("images", rank): set(encoded_by(plan, rank)) for rank in self.ranks}
        self._held[plan.step] = _Held(plan, owners, placed, said, bucket_of, missing)
        return True

    def positions(self) -> dict[int, StateDict]:
        """Return the run's position before steps of this generation, as far as what is held says it."""
        return {step + 1: held.plan.progress for step, held in self._held.items()}

    def owed_by(self, host: str) -> list[int]:
        """Return the steps that still lack something that a host prepares."""
        return [step for step in self._held if any(owner == host for owner, _ in self.needed(step))]

    def needed(self, step: int) -> dict[tuple[str, int], list[SampleId]]:
        """Return the samples that a step still lacks, by the (host, partition) that prepares them, in order."""
        held = self._held.get(step)
        needed: dict[tuple[str, int], list[SampleId]] = {}
        if held is not None:
            for sample_id in sorted(set().union(*held.missing.values())):
                needed.setdefault(held.owners[sample_id.source][sample_id.ordinal], []).append(sample_id)
        return needed

    def needed_without_pixels(self, step: int) -> set[SampleId]:
        """Return those of the needed samples whose images nobody here encodes: their geometry is enough."""
        held = self._held.get(step)
        if held is None or held.plan.encoder is None:
            return set()
        lacking: dict[str, set[SampleId]] = {"rows": set(), "images": set()}
        for (kind, _), missing in held.missing.items():
            lacking[kind] |= missing
        return lacking["rows"] - lacking["images"]

    def deliver(self, step: int, slab: SampleSlab) -> None:
        """Take payload of a step; what nobody here lacks is not kept."""
        held = self._held.get(step)
        if held is None:
            return
        arrived = set(slab.ids)
        takes_pixels = held.plan.encoder is None or slab.has_pixels
        users = {
            part for part, missing in held.missing.items() if missing & arrived and (takes_pixels or part[0] == "rows")
        }
        for part in users:
            held.missing[part] -= arrived
        if users:
            held.slabs.append((slab, users))

    def is_ready(self, step: int, bucket: int) -> bool:
        """Return whether a bucket of a step is assembled, or lacks nothing that assembling needs."""
        held = self._held.get(step)
        return held is not None and (bucket in held.assembled or held.missing.get(("rows", bucket)) == set())

    def assemble(self, step: int, bucket: int) -> AssembledBucket | None:
        """Return the rows of a bucket, assembling them on first need; None while something is missing."""
        if not self.is_ready(step, bucket):
            return None
        held = self._held[step]
        if bucket not in held.assembled:
            sample_of = held.samples_for(("rows", bucket))
            assert sample_of is not None, "a bucket that is ready lacks nothing"
            held.assembled[bucket] = self._constructor.build(held.plan, bucket, sample_of)
            held.finish(("rows", bucket))
        return held.assembled[bucket]

    def _shares(self, held: _Held, rank: int) -> tuple[EncoderShare, ...] | None:
        """Return what a rank encodes apart from its rows, assembling it on first need; None while it is missing."""
        if held.plan.encoder is None:
            return ()
        if rank not in held.shares:
            sample_of = held.samples_for(("images", rank))
            if sample_of is None:
                return None
            held.shares[rank] = self._constructor.shares(held.plan, rank, sample_of)
            held.finish(("images", rank))
        return held.shares[rank]

    def batch(self, generation: int, step: int, rank: int) -> RankBatch | None:
        """Return what a rank receives, or None while it is not there. Ranks of one bucket share its arrays."""
        held = self._held.get(step) if generation == self.generation else None
        if held is None:
            return None
        rows, shares = self.assemble(step, held.bucket_of[rank]), self._shares(held, rank)
        if rows is None or shares is None:
            return None
        return replace(self._constructor.rank_batch(rows, held.plan, rank, shares), generation=generation)

    def share_key(self, step: int, rank: int) -> tuple[Hashable, ...] | None:
        """Return what ranks with equal batches of a step have in common, or None when the step is not assigned."""
        held = self._held.get(step)
        return None if held is None else held.plan.share_key(rank)

    def drop(self, generation: int, through: int, *, number: int = 0, term: int = 0) -> None:
        """Let go of the steps up to one, except those that were assigned by a later message.

        Args:
            generation: Of the run; an older one is ignored.
            through: The last step to let go of.
            number: Of the message; see `msd.coordinator.commands.Drop`.
            term: Of the planner; see `assign`.
        """
        if not self._follow(generation):
            return
        said = (term, number)
        self._drops = [(n, t) for n, t in self._drops if n > said or t > through]
        if not any(n >= said and t >= through for n, t in self._drops):
            self._drops.append((said, through))
        self._held = {step: held for step, held in self._held.items() if step > through or said < held.number}

    def rewind(self, generation: int) -> None:
        """Begin a generation, with nothing held; one that is not newer changes nothing."""
        self._follow(generation)

    def finish(self, generation: int, step: int) -> None:
        """Note that `step` does not exist: the run ends before it."""
        if self._follow(generation):
            self.end = step

    def _follow(self, generation: int) -> bool:
        """Return whether a message speaks of the present generation, going to its generation if that is newer."""
        if generation > self.generation:
            self.generation, self.end = generation, None
            self._held.clear()
            self._drops.clear()
        return generation == self.generation
