"""What Dask tasks of batch mode do, in whichever process: each writes one file, whole or not at all."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msd.build import build_chains, build_constructor, build_loader
from msd.checkpoint.folder import Folder, open_folder
from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.core.sample import Sample, SampleId, SampleSlab
from msd.core.state import canonical_json
from msd.errors import EngineError
from msd.loader.loader import SourceLoader
from msd.runtime.assembly import Assembly
from msd.runtime.dask.wire import Wire, pack, plan_from_wire, tables_to_wire, unpack
from msd.runtime.parts import SUFFIXES, FileKind, decoded, encoded, samples_of, samples_table, steps_table

KEPT_CHUNKS = 32
"""Files of samples that a process holds decoded."""
READ_BYTES = 16 << 20
"""Of rows of a source that a process holds read ahead: a window is decoded once, not once for each of its chunks."""
KEPT_AHEAD = 8
"""Sources of which it does; of the others it holds nothing between two tasks."""
WORK = "work-"
"""Beginning of the names of files that are removed when what needs them is written."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of one command are made from."""

    name: str
    config: PipelineConfig
    orders: Mapping[str, SourceOrder]
    out: str
    storage_options: dict[str, Any] | None
    kind: FileKind


def examine(job: Job, source: str, start: int, num_rows: int, name: str) -> Wire:
    """Transform rows of a source into a file of samples, unless it is there; return what is known of them."""
    bench = _bench(job)
    content = bench.folder.read(name)
    kind: FileKind = "arrow" if name.startswith(WORK) else job.kind
    if content is not None:
        meta, _ = samples_of(decoded(content, kind, name=name))
    else:
        with bench.lock_of(source):
            loader = bench.loader(source)
            meta = loader.examine(start, num_rows)
            ids = [
                SampleId(source, meta.start + row, part)
                for row, count in enumerate(meta.num_parts_R.tolist())
                for part in range(count)
            ]
            slab = loader.fetch(ids)
            bench.done_with(source, before=meta.end)
        content = encoded(samples_table(meta, [slab.sample(one) for one in ids]), kind)
        bench.folder.write(name, content)
    return pack({
        **tables_to_wire([meta]),
        "rows": len(meta.num_tokens_S),
        "tokens": int(meta.num_tokens_S.sum()),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    })  # fmt: skip


def write_steps(job: Job, number: int, plans: Wire, chunks: Mapping[str, Sequence[tuple[int, int, str]]]) -> Wire:
    """Write the sequences of consecutive steps into one file, and what it is beside it.

    Args:
        job: The command.
        number: Of the file.
        plans: Packed, of the steps.
        chunks: By source: (first ordinal, ordinal after the last, file) of the samples that the steps hold.
    """
    bench = _bench(job)
    made = [plan_from_wire(wire) for wire in unpack(plans)]
    loaders: Any = {source: _Chunks(bench, source, found) for source, found in chunks.items()}
    assembly = Assembly(build_constructor(job.config), loaders)
    # Sequences hold their images, whoever is to encode them.
    whole = [replace(plan, encoder=None) for plan in made]
    table = steps_table(whole, lambda plan, bucket: assembly.rows(plan, bucket))
    content = encoded(table, job.kind)
    bench.folder.write(part_name(number, job.kind), content)
    said = {
        "name": part_name(number, job.kind),
        "first_step": made[0].step,
        "steps": len(made),
        "rows": table.num_rows,
        "tokens": int(sum(plan.length_D.sum() for plan in made)),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "progress": made[-1].progress,
        "is_last": made[-1].is_last,
    }
    bench.folder.write(note_name(number), canonical_json(said).encode())
    return said


def part_name(number: int, kind: FileKind) -> str:
    """Return the name of a file of sequences."""
    return f"part-{number:06d}{SUFFIXES[kind]}"


def note_name(number: int) -> str:
    """Return the name of what is said of a file of sequences: it is complete once this is there."""
    return f"{WORK}part-{number:06d}.json"


class _Bench:
    """What a process keeps from task to task of one command."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.folder: Folder = open_folder(job.out, job.storage_options)
        self._chains = build_chains(job.config)
        self._loaders: dict[str, SourceLoader] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._decoded: OrderedDict[str, dict[SampleId, Sample]] = OrderedDict()
        self._ahead: OrderedDict[str, None] = OrderedDict()
        """Sources of which rows are read ahead, the one unused for longest first."""
        self._making = threading.Lock()

    def lock_of(self, source: str) -> threading.Lock:
        """Return what is held while the loader of a source is used."""
        with self._making:
            return self._locks.setdefault(source, threading.Lock())

    def loader(self, source: str) -> SourceLoader:
        """Return the loader of a source."""
        if source not in self._loaders:
            self._loaders[source] = build_loader(
                self.job.config,
                self.job.orders[source],
                self._chains[source],
                buffer_bytes=256 << 20,
                read_bytes=READ_BYTES,
            )
        return self._loaders[source]

    def done_with(self, source: str, *, before: int) -> None:
        """Let go of samples that are written; rows that were read with them stay for the chunk that follows."""
        self._loaders[source].release(before)
        with self._making:
            self._ahead[source] = None
            self._ahead.move_to_end(source)
            gone = [self._ahead.popitem(last=False)[0] for _ in range(len(self._ahead) - KEPT_AHEAD)]
        for name in gone:
            self._loaders[name].rest()

    def samples(self, name: str) -> dict[SampleId, Sample]:
        """Return the samples of a file.

        Raises:
            EngineError: If it is gone.
        """
        with self._making:
            found = self._decoded.get(name)
        if found is None:
            content = self.folder.read(name)
            if content is None:
                raise EngineError(f"{name} is gone from {self.folder.path}; run the same command again")
            _, samples = samples_of(decoded(content, "arrow", name=name))
            found = {sample.id: sample for sample in samples}
        with self._making:
            self._decoded[name] = found
            self._decoded.move_to_end(name)
            while len(self._decoded) > KEPT_CHUNKS:
                self._decoded.popitem(last=False)
        return found

    def close(self) -> None:
        """Close files."""
        for loader in self._loaders.values():
            loader.close()


class _Chunks:
    """The samples of a source as files hold them, where an assembly looks for a loader."""

    def __init__(self, bench: _Bench, source: str, found: Sequence[tuple[int, int, str]]) -> None:
        self._bench, self._source, self._found = bench, source, found

    def fetch(self, ids: Sequence[SampleId]) -> SampleSlab:
        """Return the payload of samples, in the order asked."""
        return SampleSlab.of([self._sample(one) for one in ids])

    def _sample(self, sample_id: SampleId) -> Sample:
        for first, end, name in self._found:
            if first <= sample_id.ordinal < end:
                return self._bench.samples(name)[sample_id]
        raise EngineError(f"no file holds row {sample_id.ordinal} of source {self._source!r}")


_benches: dict[str, _Bench] = {}
_making = threading.Lock()


def _bench(job: Job) -> _Bench:
    with _making:
        if job.name not in _benches:
            for older in _benches.values():
                older.close()
            _benches.clear()
            _benches[job.name] = _Bench(job)
        return _benches[job.name]


def read_note(folder: Folder, number: int) -> dict[str, Any] | None:
    """Return what is said of a file of sequences, None unless it is complete."""
    content = folder.read(note_name(number))
    if content is None:
        return None
    try:
        found: dict[str, Any] = json.loads(content)
        return found
    except ValueError:
        return None
