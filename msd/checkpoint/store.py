"""The durable memory of a run: snapshots of its position, and the journal of what was decided since."""

import logging
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from msd.checkpoint.folder import Folder, open_folder
from msd.checkpoint.snapshot import Entry, Named, Snapshot, named, read_entry, read_snapshot, written
from msd.core.checks import few
from msd.core.state import StateDict
from msd.errors import StateError

_LOG = logging.getLogger("msd")


def open_store(path: str, *, keep: int = 3, storage_options: dict[str, Any] | None = None) -> "Store":
    """Return the store at a folder or fsspec URL; nothing is made or written yet.

    Args:
        path: Of the folder; it need not exist.
        keep: Whole snapshots that stay.
        storage_options: Passed to fsspec.

    Raises:
        ConfigError: If the path is no folder, or the URL cannot be reached.
    """
    return Store(open_folder(path, storage_options), keep=keep)


class Store:
    """Snapshots and journal of one run after another, each in a small JSON file that its own name verifies.

    Only files of these two kinds are ever written or removed here. One run writes at a time: see `Lease`. Methods may
    be called from any thread; they raise `EngineError`, naming the folder and the reason, where it cannot be read or
    written.
    """

    def __init__(self, folder: Folder, *, keep: int = 3) -> None:
        """Use a folder; see `open_store`."""
        self.folder = folder
        self.keep = keep
        self._lock = threading.RLock()
        self._whole: dict[str, int] = {}
        """Names of snapshots that were found whole, with the number of the last journal entry that each contains."""

    @property
    def path(self) -> str:
        """Where it is, for people."""
        return self.folder.path

    def save(self, state: StateDict, *, step: int, run: str, lineage: str = "", journal: int | None = None) -> Snapshot:
        """Save a snapshot and return it; it is durable then. Old ones beyond `keep` go.

        Args:
            state: As `client.state_dict()` returns it.
            step: The step that comes next.
            run: Which saves.
            lineage: See `Snapshot`.
            journal: Number of the last journal entry that `state` contains; all that there are if it is left out.
        """
        with self._lock:
            files = self._files()
            contained = self._last_entry(files) if journal is None else journal
            number = max((file.number for file in files if file.kind == "snapshot"), default=0) + 1
            body: dict[str, Any] = {
                "run": run,
                "when": _now(),
                "lineage": lineage,
                "journal": contained,
                "state": state,
            }
            name, content = written("snapshot", number, body, step=step)
            self.folder.write(name, content)
            self._whole[name] = contained
            self._retain([*files, Named(name, "snapshot", number, step, "")])
            return Snapshot(name=name, number=number, step=step, size=len(content), **body)

    def append(self, record: dict[str, Any], *, run: str, lineage: str = "") -> int:
        """Journal a record and return the number of its entry; it is durable then."""
        with self._lock:
            files = self._files()
            number = self._last_entry(files) + 1
            body = {"run": run, "when": _now(), "lineage": lineage, "record": record}
            self.folder.write(*written("journal", number, body))
            return number

    def newest(self) -> Snapshot | None:
        """Return the newest whole snapshot, or None if there is none at all; what is damaged is told in the log.

        Raises:
            StateError: If there are snapshots and all are damaged; names each.
        """
        damaged: list[Snapshot] = []
        for file in self._newest_first():
            snapshot = read_snapshot(file, self.folder.read(file.name))
            if snapshot.is_whole:
                if damaged:
                    _LOG.warning(
                        "checkpoint %s: %s; snapshot %s of step %d is used instead",
                        self.path,
                        _told(damaged),
                        snapshot.name,
                        snapshot.step,
                    )
                return snapshot
            damaged.append(snapshot)
        if damaged:
            raise StateError(
                f"cannot resume: every snapshot in the checkpoint {self.path} is damaged ({_told(damaged)}); restore "
                "the folder from a copy, load a state that the trainer saved, or start in an empty folder"
            )
        return None

    def find(self, *, name: str | None = None, step: int | None = None) -> Snapshot:
        """Return the whole snapshot of a name, or the newest whole one of a step.

        Raises:
            StateError: If there is none; names those that there are.
        """
        fitting = [f for f in self._newest_first() if f.name == name or (name is None and f.step == step)]
        found = [read_snapshot(file, self.folder.read(file.name)) for file in fitting]
        for snapshot in found:
            if snapshot.is_whole:
                return snapshot
        if found:
            raise StateError(f"checkpoint {self.path}: {_told(found)}; use another snapshot")
        steps = few(sorted({file.step for file in self._newest_first()}))
        asked = f"snapshot {name!r}" if name is not None else f"snapshot of step {step}"
        raise StateError(f"checkpoint {self.path} has no {asked}; it has those of steps {steps or 'none'}")

    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, also damaged ones, the oldest first."""
        return [read_snapshot(file, self.folder.read(file.name)) for file in reversed(self._newest_first())]

    def journal(self, since: int = 0) -> list[Entry]:
        """Return the entries after number `since`, in order.

        A last one that is torn was never acknowledged: it is left out, which is told in the log.

        Raises:
            StateError: If one before the last is damaged; names it.
        """
        entries = [entry for entry in self.entries() if entry.number > since]
        if entries and not entries[-1].is_whole:
            torn = entries.pop()
            _LOG.warning("checkpoint %s: journal entry %s is left out: %s", self.path, torn.name, torn.why_not)
        for entry in entries:
            if not entry.is_whole:
                raise StateError(
                    f"cannot resume: entry {entry.name} of the journal in {self.path} is damaged ({entry.why_not}), "
                    "and what came after it may depend on it; resume from a snapshot after it, or load a state that "
                    "the trainer saved"
                )
        return entries

    def entries(self) -> list[Entry]:
        """Return all journal entries, also damaged ones, in order."""
        files = sorted((f for f in self._files() if f.kind == "journal"), key=lambda file: (file.number, file.name))
        return [read_entry(file, self.folder.read(file.name)) for file in files]

    def sweep(self) -> None:
        """Remove half-written files that killed writers left; only for the holder of the lease."""
        self.folder.sweep()

    def _files(self) -> list[Named]:
        return [file for name in self.folder.names() if (file := named(name)) is not None]

    def _newest_first(self) -> list[Named]:
        files = [file for file in self._files() if file.kind == "snapshot"]
        return sorted(files, key=lambda file: (file.number, file.name), reverse=True)

    def _last_entry(self, files: Iterable[Named]) -> int:
        """Return the number of the last journal entry: it may be gone, where snapshots contain it."""
        return max((f.number if f.kind == "journal" else self._contained(f) for f in files), default=0)

    def _contained(self, file: Named) -> int:
        """Return the last journal entry that a snapshot contains, 0 if it is damaged."""
        if file.name not in self._whole:
            snapshot = read_snapshot(file, self.folder.read(file.name))
            if not snapshot.is_whole:
                return 0
            self._whole[file.name] = snapshot.journal
        return self._whole[file.name]

    def _retain(self, files: Iterable[Named]) -> None:
        """Remove snapshots beyond `keep`, damaged ones before those, and entries that all kept ones contain."""
        kept: list[int] = []
        files = list(files)
        snapshots = [file for file in files if file.kind == "snapshot"]
        for file in sorted(snapshots, key=lambda file: (file.number, file.name), reverse=True):
            if len(kept) == self.keep:
                self.folder.remove(file.name)
                self._whole.pop(file.name, None)
                continue
            contained = self._contained(file)
            if file.name in self._whole:
                kept.append(contained)
        entries = sorted((file for file in files if file.kind == "journal"), key=lambda file: file.number)
        for file in entries:
            if file.number <= min(kept, default=0):
                self.folder.remove(file.name)


def _told(snapshots: Iterable[Snapshot]) -> str:
    return few((f"snapshot {snapshot.name} is damaged: {snapshot.why_not}" for snapshot in snapshots), most=4)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
