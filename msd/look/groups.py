"""Paths to groups: the files of one folder and one format, which become one source."""

import glob
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from msd.core.written import MANIFEST
from msd.errors import SourceError
from msd.look import sniff
from msd.sources.config import PACKED
from msd.sources.packed import is_packed

_MAX_FILES = 100_000
_MANIFEST_BYTES = 1 << 28
"""Larger than any manifest."""


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one folder and one format."""

    name: str
    format: str
    reason: str
    root: str
    files: tuple[str, ...]
    nbytes: int
    patterns: tuple[str, ...]


class Place:
    """A file system and the paths below one that the user named."""

    def __init__(self, path: str) -> None:
        import fsspec

        self.is_url = "://" in path
        self.path = path if self.is_url else os.path.abspath(os.path.expanduser(path))
        self._system, self.root = fsspec.core.url_to_fs(self.path)
        self.is_folder = bool(self._system.isdir(self.root))

    def open(self, path: str) -> Any:
        """Open a file for reading bytes."""
        return self._system.open(path, "rb")

    def files(self) -> dict[str, int]:
        """Return path to size of every file at, below or matching the path; hidden ones are not looked at."""
        if self.is_folder:
            found = self._system.find(self.root, detail=True)
        elif self._system.exists(self.root):
            found = {self.root: self._system.info(self.root)}
        elif glob.has_magic(self.root):
            found = {
                path: facts
                for path, facts in self._system.glob(self.root, detail=True).items()
                if facts["type"] == "file"
            }
        else:
            raise SourceError(_missing(self.path))
        below = len(PurePosixPath(self.base).parts)
        return {
            path: int(facts.get("size") or 0)
            for path, facts in sorted(found.items())[:_MAX_FILES]
            if not any(part.startswith(".") for part in PurePosixPath(path).parts[below:])
        }

    @property
    def base(self) -> str:
        """The folder that sources are named below."""
        if self.is_folder:
            return str(self.root)
        plain = []
        for part in PurePosixPath(self.root).parts[:-1]:
            if glob.has_magic(part):
                break
            plain.append(part)
        return str(PurePosixPath(*plain))

    def url(self, path: str) -> str:
        """Return how a configuration names a path of this file system."""
        return self._system.unstrip_protocol(path) if self.is_url else path

    def is_saved_dataset(self, folder: str) -> bool:
        """Whether `datasets.save_to_disk` wrote the folder."""
        return bool(self._system.exists(f"{folder}/state.json") and self._system.exists(f"{folder}/dataset_info.json"))


def _packed_folders(place: Place, sizes: dict[str, int]) -> set[str]:
    """Return the folders that `msd run` filled with packed sequences."""
    found = set()
    for file in sizes:
        if PurePosixPath(file).name == MANIFEST and sizes[file] <= _MANIFEST_BYTES:
            with place.open(file) as opened:
                if is_packed(opened.read()):
                    found.add(str(PurePosixPath(file).parent))
    return found


def check_exists(path: str) -> None:
    """Raise `SourceError` for a local path that is not there; a URL or glob is for whoever reads it."""
    if "://" not in path and not glob.has_magic(path) and not os.path.exists(os.path.expanduser(path)):
        raise SourceError(_missing(path))


def _missing(path: str) -> str:
    return f"{path!r} does not exist; give a file, folder, glob or URL"


def groups_below(path: str, left_out: list[str]) -> list[tuple[Place, Group]]:
    """Return the groups at, below or matching a path; what is in none is added to `left_out` with its reason."""
    place = Place(path)
    sizes = place.files()
    if not sizes:
        raise SourceError(f"{place.path!r} holds no files; give a folder, file or glob with data")
    packed = _packed_folders(place, sizes)
    saved = {folder for folder in {str(PurePosixPath(file).parent) for file in sizes} if place.is_saved_dataset(folder)}
    groups: dict[tuple[str, str], list[str]] = {}
    reasons: dict[tuple[str, str], str] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    known: dict[tuple[str, str], tuple[str, str]] = {}
    for file, nbytes in sizes.items():
        parent = str(PurePosixPath(file).parent)
        top = _top_folder(place.base, file)
        if parent in packed:
            key, reason = (parent, PACKED), "says that msd run wrote the folder: whole sequences, packed already"
        elif parent in saved:
            key, reason = (parent, "hf"), "is a dataset saved by Hugging Face datasets"
        elif PurePosixPath(file).name in ("tokenizer.json", "tokenizer_config.json"):
            continue
        else:
            # Files of one ending in one folder are of one format; reading every head of a large set takes minutes.
            alike = (top, _ending(file) if nbytes else "empty")
            if alike not in known:
                known[alike] = _format_of(place, file)
            kind, reason = known[alike]
            if not kind:
                refused.setdefault((top, reason), []).append(file)
                continue
            key = (top, kind)
        groups.setdefault(key, []).append(file)
        reasons.setdefault(key, reason)
    for (_, reason), files in refused.items():
        more = f" (and {len(files) - 1} more like it)" if len(files) > 1 else ""
        left_out.append(f"{place.url(files[0])} {reason}{more}")
    made = []
    for (folder, kind), files in groups.items():
        others = [other for (top, other) in groups if top == folder and other in sniff.RECORD_FORMATS]
        if kind == "text" and others:
            left_out.append(f"{len(files)} text files beside {others[0]} in {folder}: name them to include them")
            continue
        made.append((place, _group(place, folder, kind, files, sizes, reasons[folder, kind])))
    return made


def _format_of(place: Place, file: str) -> tuple[str, str]:
    try:
        return sniff.format_of(file, place.open)
    except OSError as error:
        return "", f"cannot be read ({error.strerror or error})"


def _top_folder(base: str, file: str) -> str:
    relative = (
        PurePosixPath(file).relative_to(base) if PurePosixPath(file).is_relative_to(base) else PurePosixPath(file)
    )
    return str(PurePosixPath(base) / relative.parts[0]) if len(relative.parts) > 1 else base


def _group(place: Place, folder: str, kind: str, files: list[str], sizes: dict[str, int], reason: str) -> Group:
    if place.root in sizes:
        patterns = [place.path]
        name = PurePosixPath(place.root).name.partition(".")[0]
    elif kind in ("hf", PACKED):
        patterns, name = [place.url(folder)], PurePosixPath(folder).name
    elif not place.is_folder and folder == place.base:
        is_whole = len(files) == len(sizes)
        patterns = [place.path] if is_whole else [place.url(glob.escape(file)) for file in files]
        name = PurePosixPath(folder).name
    else:
        is_flat = all(str(PurePosixPath(file).parent) == folder for file in files)
        patterns = []
        for ending in sorted({_ending(file) for file in files}):
            if _takes_in_others(folder, ending, files, sizes, is_flat=is_flat):
                patterns += [place.url(glob.escape(file)) for file in files if _ending(file) == ending]
            else:
                patterns.append(f"{place.url(glob.escape(folder))}/{'' if is_flat else '**/'}*{ending}")
        name = PurePosixPath(folder).name
        own = PurePosixPath(files[0]).name.partition(".")[0]
        if kind == "webdataset" and len(files) == 1 and folder == place.base and re.search("[A-Za-z]", own):
            # Beside other data, an archive that somebody named says more than the folder that all of it lies in.
            name = own
    return Group(name, kind, reason, folder, tuple(files), sum(sizes[file] for file in files), tuple(patterns))


def _takes_in_others(folder: str, ending: str, files: list[str], sizes: dict[str, int], *, is_flat: bool) -> bool:
    """Return whether a pattern for files of this ending would take in one that is not of the group."""
    others = set(sizes) - set(files)
    parents = [PurePosixPath(file).parent for file in others if file.endswith(ending)]
    return any(parent == PurePosixPath(folder) or (not is_flat and parent.is_relative_to(folder)) for parent in parents)


def _ending(file: str) -> str:
    """Return what a glob for files like this one ends in: `.jsonl.gz`, `.parquet`."""
    name = PurePosixPath(file)
    packed = name.suffix.lower() in (".gz", ".zst", ".zstd")
    return "".join(name.suffixes[-2:]) if packed else name.suffix
