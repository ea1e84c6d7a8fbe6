"""A run in one process: rank batches made where rows are prepared, each row once for the ranks that share it."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from msd.constructor.constructor import AssembledBucket, DataConstructor
from msd.constructor.encoder import encoded_by
from msd.core.batch import Microbatch, RankBatch
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId, SampleSlab
from msd.loader.loader import SourceLoader


class Assembly:
    """Fetches the samples of a step from loaders and assembles them. For one thread at a time."""

    def __init__(self, constructor: DataConstructor, loaders: Mapping[str, SourceLoader]) -> None:
        """Assemble with `constructor` what `loaders` hold, by source."""
        self._constructor = constructor
        self._loaders = loaders
        self._rows: OrderedDict[tuple[int, int], AssembledBucket] = OrderedDict()
        """By step and bucket."""

    def batch(self, plan: StepPlan, rank: int) -> RankBatch:
        """Return what a rank receives for the step of a plan."""
        shares = self._constructor.shares(plan, rank, self._fetch(encoded_by(plan, rank)))
        return self._constructor.rank_batch(self._assembled(plan, plan.bucket_of(rank)), plan, rank, shares)

    def rows(self, plan: StepPlan, bucket: int) -> tuple[Microbatch, ...]:
        """Return the whole microbatches of a bucket, where no axis slices rows."""
        (rows,) = self._constructor.build(plan, bucket, self._fetch(plan.sample_ids(bucket))).microbatches_C
        return rows

    def clear(self) -> None:
        """Let go of all rows: another generation began."""
        self._rows.clear()

    def _assembled(self, plan: StepPlan, bucket: int) -> AssembledBucket:
        key = (plan.step, bucket)
        if key not in self._rows:
            self._rows[key] = self._constructor.build(plan, bucket, self._fetch(plan.sample_ids(bucket)))
            # Ranks that share a bucket mostly ask one after another, so two steps' worth is enough to share.
            while len(self._rows) > 2 * plan.num_buckets:
                self._rows.popitem(last=False)
        return self._rows[key]

    def _fetch(self, ids: Iterable[SampleId]) -> Callable[[SampleId], Sample]:
        wanted: dict[str, list[SampleId]] = {}
        for sample_id in dict.fromkeys(ids):
            wanted.setdefault(sample_id.source, []).append(sample_id)
        slabs: dict[str, SampleSlab] = {name: self._loaders[name].fetch(chosen) for name, chosen in wanted.items()}
        return lambda sample_id: slabs[sample_id.source].sample(sample_id)
