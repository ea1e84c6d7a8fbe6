"""Text that every installation has: Python source, docstrings, documentation files, package descriptions.

Each function returns rows in a fixed order; what is taken when there is more than asked is drawn by seed.
"""

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from msd.core.seeds import permutation

Row = dict[str, Any]

# What msd itself depends on, so that the docstrings do not change with what else is installed.
_DOCUMENTED = (
    "bokeh",
    "dask",
    "distributed",
    "fsspec",
    "msgspec",
    "numpy",
    "pandas",
    "PIL",
    "pyarrow",
    "rich",
    "sklearn",
)
_SKIPPED_FOLDERS = {"test", "tests", "site-packages", "dist-packages", "__pycache__", "idle_test"}
_DOC_SUFFIXES = (".md", ".rst", ".txt")
_MAX_DOC_BYTES = 200_000
_MIN_TEXT_CHARS = 80


def code_rows(budget_bytes: int, seed: int) -> list[Row]:
    """Return Python source of the standard library, a file a row, up to about `budget_bytes` of text."""
    root = Path(sysconfig.get_paths()["stdlib"])
    rows = []
    for path, text in _sources_within(root, budget_bytes, seed, "code"):
        rows.append({"text": text, "path": path, "lines": text.count("\n") + 1})
    return rows


def docstring_rows(budget_bytes: int, seed: int) -> list[Row]:
    """Return docstrings of the packages that msd depends on, up to about `budget_bytes` of text."""
    rows: list[Row] = []
    for package in _DOCUMENTED:
        spec = importlib.util.find_spec(package)
        folders = list(spec.submodule_search_locations or []) if spec is not None else []
        if not folders:
            continue
        taken = 0
        share = budget_bytes // len(_DOCUMENTED)
        for path, text in _sources_within(Path(folders[0]), 1 << 40, seed, f"docstrings of {package}"):
            for name, docstring in _docstrings(text):
                rows.append({"text": docstring, "name": name, "path": f"{package}/{path}"})
                taken += len(docstring)
            if taken >= share:
                break
    return _without_repeats(sorted(rows, key=lambda row: (row["path"], row["name"])))


def document_rows(budget_bytes: int, seed: int) -> list[Row]:
    """Return the Python language reference that `help()` shows, and documentation files of installed packages."""
    from pydoc_data.topics import topics

    rows: list[Row] = [{"text": text, "path": f"python/{name}"} for name, text in sorted(topics.items())]
    for distribution in _distributions():
        for file in distribution.files or ():
            wanted = file.suffix in _DOC_SUFFIXES and ".." not in file.parts
            if not wanted or any(part.endswith(".dist-info") or part in _SKIPPED_FOLDERS for part in file.parts):
                continue
            path = Path(str(file.locate()))
            if path.is_file() and path.stat().st_size <= _MAX_DOC_BYTES:
                text = _read(path)
                if text is not None:
                    rows.append({"text": text, "path": file.as_posix()})
    return _within(_without_repeats(rows), budget_bytes, seed, "docs")


def description_rows(budget_bytes: int, seed: int) -> list[Row]:
    """Return the long descriptions of installed packages."""
    rows: list[Row] = []
    for distribution in _distributions():
        fields = cast(Message, distribution.metadata)
        text = fields.get_payload() or fields.get("Description") or ""
        rows.append(
            {
                # Metadata in another encoding arrives as lone surrogates, which UTF-8 cannot hold.
                "text": str(text).encode("utf-8", "replace").decode().strip(),
                "name": fields["Name"],
                "version": fields["Version"],
                "summary": fields.get("Summary") or "",
            }
        )
    return _within(_without_repeats(rows), budget_bytes, seed, "descriptions")


def _distributions() -> list[metadata.Distribution]:
    # This package is left out: its own text changes from commit to commit.
    named = {name.lower(): d for d in metadata.distributions() if (name := d.metadata["Name"])}
    return [named[name] for name in sorted(named) if name != "msd"]


def _sources_within(root: Path, budget_bytes: int, seed: int, purpose: str) -> Iterator[tuple[str, str]]:
    """Yield (relative path, text) of Python files below `root`, drawn by seed, until the budget is spent."""
    paths = sorted(
        relative
        for path in root.rglob("*.py")
        if not _SKIPPED_FOLDERS.intersection((relative := path.relative_to(root)).parts)
    )
    spent = 0
    for number in permutation(len(paths), seed, "corpus", purpose).tolist():
        if spent >= budget_bytes:
            return
        text = _read(root / paths[number])
        if text is not None and len(text) >= _MIN_TEXT_CHARS:
            spent += len(text)
            yield paths[number].as_posix(), text


def _read(path: Path) -> str | None:
    """Return the text of a file, or None for one in another encoding: the corpus is UTF-8 throughout."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _docstrings(source: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    places: list[tuple[str, ast.AST]] = [("", tree)]
    while places:
        prefix, node = places.pop(0)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield prefix or "module", docstring
            for child in node.body:
                if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    places.append((f"{prefix}.{child.name}".lstrip("."), child))


def _without_repeats(rows: Iterable[Row]) -> list[Row]:
    """Keep the first row of each text, and only texts with something to read."""
    seen: set[bytes] = set()
    kept = []
    for row in rows:
        digest = hashlib.blake2b(row["text"].encode(), digest_size=16).digest()
        if len(row["text"]) >= _MIN_TEXT_CHARS and digest not in seen:
            seen.add(digest)
            kept.append(row)
    return kept


def _within(rows: list[Row], budget_bytes: int, seed: int, purpose: str) -> list[Row]:
    """Return the rows drawn by seed until the budget is spent, in their first order."""
    taken, spent = [], 0
    for number in permutation(len(rows), seed, "corpus", purpose).tolist():
        if spent >= budget_bytes:
            break
        taken.append(number)
        spent += len(rows[number]["text"])
    return [rows[number] for number in sorted(taken)]
