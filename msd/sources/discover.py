"""What a source's paths lead to: globs, directories, files and lists of them, local or behind any fsspec URL."""

import difflib
import glob
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from msd.errors import SourceError
from msd.sources.config import ReaderConfig
from msd.sources.discover_remote import remote_files
from msd.sources.files import is_local, reading
from msd.sources.found import Found, expand_braces, fixed_part
from msd.sources.versions import version_of

EXTENSIONS: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq", ".parq"),
    "jsonl": tuple(base + packed for base in (".jsonl", ".ndjson", ".jsonlines") for packed in ("", ".gz", ".zst")),
    "webdataset": (".tar", ".tar.gz", ".tgz", ".tar.zst"),
    "arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    "hf": ("state.json",),
    "text": (".txt", ".md", ".rst", ".py"),
}
"""What a directory's files must end in to be taken; a file or glob is taken as it is named."""
HF_MARKS = ("state.json", "dataset_dict.json")
"""What a directory saved by `datasets` has beside its Arrow files."""


def discover(name: str, config: ReaderConfig) -> list[Found]:
    """Return every file that the source's paths lead to, hidden ones left out, each path once."""
    items = [config.path] if isinstance(config.path, str) else list(config.path or ())
    if not items:
        raise SourceError(f"sources.{name}: no path given; name a file, glob, directory or URL")
    by_path: dict[str, Found] = {}
    for item in items:
        item = item.removeprefix("file://")
        reached = _local_files(name, item) if is_local(item) else remote_files(name, item, config)
        for file in reached:
            if not any(piece.startswith(".") for piece in file.inside.split("/")):
                by_path.setdefault(file.path, file)
    if not by_path:
        raise SourceError(
            f"sources.{name}: {shown(config)} matches no file; looked for files that are not hidden; put data there or "
            "correct the path"
        )
    return list(by_path.values())


def _local_files(name: str, item: str) -> Iterator[Found]:
    path = os.path.abspath(os.path.expanduser(item))
    if os.path.isdir(path):
        for file in walk(path):
            yield _local(path, file, is_named=False)
        return
    if os.path.isfile(path):
        yield _local(os.path.dirname(path), path, is_named=True)
        return
    if os.path.lexists(path):
        raise SourceError(f"sources.{name}: {_no_file(path)}")
    patterns = expand_braces(path)
    if len(patterns) == 1 and not glob.has_magic(path):
        raise SourceError(f"sources.{name}: {path} does not exist; {_nearby(path)}")
    root = os.path.commonpath([fixed_part(pattern) for pattern in patterns])
    for pattern in patterns:
        matches = sorted(set(matching(pattern)))
        files = [match for match in matches if os.path.isfile(match) or _is_dead_link(match)]
        for match in files:
            yield _local(root, match, is_named=True)
        # A glob of directories saved by `datasets` names what lies in them.
        folders = [match for match in matches if any(os.path.exists(os.path.join(match, m)) for m in HF_MARKS)]
        for folder in folders:
            for file in walk(folder):
                yield _local(root, file, is_named=False)
        if not files and not folders:
            others = [match for match in matches if not os.path.isdir(match)]
            inner = f"; it matches {len(matches)} directories: end it in /**/*" if matches else ""
            if others:
                inner = f"; {_no_file(others[0])}"
            raise SourceError(f"sources.{name}: {pattern} matches no file{inner}; {_nearby(fixed_part(pattern))}")


def _no_file(path: str) -> str:
    """Return why a path that exists is no file to read, and what to do."""
    found = "a pipe, socket or device"
    if os.path.islink(path):
        with suppress(OSError):
            found = f"a link to {os.readlink(path)}"
        found += ", which does not exist" if _is_dead_link(path) else ", which is none either"
    return f"{path} is not a regular file but {found}; name the file that holds the data"


def _is_dead_link(path: str) -> bool:
    """Return whether a path is a link that leads nowhere, or round in circles."""
    return os.path.islink(path) and not os.path.exists(path)


def _local(root: str, path: str, *, is_named: bool) -> Found:
    inside = os.path.relpath(path, root).replace(os.sep, "/")
    if _is_dead_link(path):
        return Found(root, inside, path, 0, "", is_named)
    with reading(path):
        status = os.stat(path)
    return Found(root, inside, path, status.st_size, version_of(status), is_named)


def matching(pattern: str) -> Iterator[str]:
    """Yield what a pattern matches. Below `**` each directory is searched once, whatever links lead to it or round."""
    pieces = pattern.split("/")
    if "**" not in pieces:
        yield from glob.iglob(pattern)
        return
    at = pieces.index("**")
    rest = "/".join(pieces[at + 1 :] or ["*"])
    for start in glob.iglob("/".join(pieces[:at]) or "/"):
        for folder, _ in _folders(start) if os.path.isdir(start) else ():
            yield from matching(f"{glob.escape(folder.rstrip('/'))}/{rest}")


def walk(root: str) -> Iterator[str]:
    """Yield the files under `root`, through links, each directory once."""
    for _, entries in _folders(root):
        for entry in entries:
            if not _is(entry.is_dir) and (_is(entry.is_file) or _is_dead_link(entry.path)):
                yield entry.path


def _folders(root: str) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Yield each directory at and under `root` that is not hidden, and what it holds, sorted by name."""
    seen, waiting = set(), [root]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        with reading(folder), os.scandir(folder) as found:
            entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda entry: entry.name)
        waiting += [entry.path for entry in entries if _is(entry.is_dir)]
        yield folder, entries


def _is(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except OSError:
        # A link that leads to itself, or through a directory that may not be searched.
        return False


def _nearby(path: str) -> str:
    """Return what exists close to a path that led nowhere, and what to do."""
    folder = path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return f"{folder} cannot be listed; make it readable for this user"
    near = difflib.get_close_matches(os.path.basename(path), names, n=1, cutoff=0.6) if folder != path else []
    if near:
        return f"did you mean {os.path.join(folder, near[0])}?"
    return f"{folder} holds {counted(names)}; correct the path or put data there"


def counted(names: Iterable[str]) -> str:
    """Return endings with counts, the most frequent first: `12 .jsonl.gz, 1 .md`."""
    counts = Counter(_ending(name) for name in names)
    listed = [f"{count} {ending}" for ending, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return ", ".join(listed[:6]) + (", ..." if len(listed) > 6 else "") if listed else "nothing"


def _ending(name: str) -> str:
    base = posixpath.basename(name)
    known = [ending for endings in EXTENSIONS.values() for ending in endings if base.lower().endswith(ending)]
    return max(known, key=len) if known else (posixpath.splitext(base)[1] or "without extension")


def shown(config: ReaderConfig) -> str:
    """Return the source's paths as the user wrote them."""
    return config.path if isinstance(config.path, str) else f"[{', '.join(config.path or ())}]"
