"""A loader host, simulated: many source loaders, each of one partition, and what it remembers for a planner's heir."""

from collections.abc import Callable, Iterable, Sequence

from msd.coordinator.standing import Standing
from msd.core.sample import MetaTable, SampleId, SampleSlab
from msd.loader.loader import SourceLoader


class SimulatedHost:
    """Examines rows and hands over samples for the partitions that it is asked about."""

    def __init__(self, name: str, process: str, new_loader: Callable[[str], SourceLoader]) -> None:
        """Hold no loader yet.

        Args:
            name: Of the host.
            process: Which process of that name it is.
            new_loader: Returns a loader of a source that has read nothing.
        """
        self.name = name
        self.process = process
        self.standing: Standing | None = None
        """How the generation began, as the planner said last."""
        self._new_loader = new_loader
        self._term = self._number = 0
        self._loaders: dict[tuple[str, int], SourceLoader] = {}

    def hears(self, term: int) -> bool:
        """Return whether a planner of a term still has a say; an earlier one than the latest has none."""
        if term > self._term:
            self._term, self._number = term, 0
        return term == self._term

    def replicate(self, term: int, number: int, standing: Standing) -> None:
        """Keep a copy of how the generation began; a message of a smaller number that comes late changes nothing."""
        if (term, number) >= (self._term, self._number):
            self._term, self._number, self.standing = term, number, standing

    def examine(self, source: str, partition: int, start: int, num_rows: int) -> MetaTable:
        """Return what is known of rows."""
        return self._loader(source, partition).examine(start, num_rows)

    def fetch(self, partition: int, ids: Sequence[SampleId]) -> SampleSlab:
        """Return samples of any sources, in order."""
        by_source: dict[str, list[SampleId]] = {}
        for sample_id in ids:
            by_source.setdefault(sample_id.source, []).append(sample_id)
        slabs = {source: self._loader(source, partition).fetch(chosen) for source, chosen in by_source.items()}
        return SampleSlab.of([slabs[sample_id.source].sample(sample_id) for sample_id in ids])

    def release(self, source: str, before: int) -> None:
        """Drop the payload of rows before an ordinal."""
        for (name, _), loader in self._loaders.items():
            if name == source:
                loader.release(before)

    def counts(self) -> Iterable[tuple[str, int, dict[str, object]]]:
        """Yield (source, partition, counts) of each loader."""
        for (source, partition), loader in sorted(self._loaders.items()):
            yield source, partition, loader.counts()

    def close(self) -> None:
        """Close files."""
        for loader in self._loaders.values():
            loader.close()

    def _loader(self, source: str, partition: int) -> SourceLoader:
        key = (source, partition)
        if key not in self._loaders:
            self._loaders[key] = self._new_loader(source)
        return self._loaders[key]
