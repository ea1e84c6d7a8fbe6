"""Kinds of columns: what a value becomes in Python, so that shards which differ only in storage agree."""

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msd.errors import SourceError

Kind: TypeAlias = str | list["Kind"] | dict[str, "Kind"]
"""`int`, `string`, ...; a list of one kind is a list column; a mapping is a struct."""
Schema: TypeAlias = dict[str, Kind]
"""Column name to kind, in file order."""


def merge_kinds(first: Kind, second: Kind) -> Kind | None:
    """Return the kind that holds values of both, or None if they cannot stand in one column; null goes with any."""
    if first == "null" or second == "null":
        return second if first == "null" else first
    if isinstance(first, list) and isinstance(second, list):
        inner = merge_kinds(first[0], second[0])
        return None if inner is None else [inner]
    if isinstance(first, dict) and isinstance(second, dict):
        if set(first) != set(second):
            return None
        merged = {name: merge_kinds(kind, second[name]) for name, kind in first.items()}
        return (
            {name: kind for name, kind in merged.items() if kind is not None} if None not in merged.values() else None
        )
    return first if first == second else None


def check_same_schema(shards: Iterable[tuple[str, Schema]], columns: Sequence[str] | None) -> None:
    """Refuse shards of one source that differ in columns or in a column's kind.

    Args:
        shards: (path, schema) of each shard.
        columns: The columns that will be read; None is all.

    Raises:
        SourceError: Naming both files and the columns that differ, or a column that does not exist.
    """
    first_path, common = "", None
    for path, schema in shards:
        chosen = _chosen(path, schema, columns)
        if common is None:
            first_path, common = path, chosen
            continue
        if chosen == common:
            continue
        missing, added = [n for n in common if n not in chosen], [n for n in chosen if n not in common]
        merged = {name: merge_kinds(common[name], chosen[name]) for name in common if name in chosen}
        differing = [name for name, kind in merged.items() if kind is None]
        if missing or added or differing:
            raise SourceError(_mixed(first_path, path, common, chosen, missing, added, differing))
        common = {name: kind for name, kind in merged.items() if kind is not None}


def _chosen(path: str, schema: Schema, columns: Sequence[str] | None) -> Schema:
    if columns is None:
        return schema
    for column in columns:
        if column not in schema:
            near = difflib.get_close_matches(column, list(schema), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(schema) or 'none'}"
            raise SourceError(f"columns: {path} has no column {column!r}; {hint}")
    return {name: schema[name] for name in columns}


def _mixed(
    first_path: str, path: str, first: Schema, second: Schema,
    missing: list[str], added: list[str], differing: list[str],
) -> str:  # fmt: skip
    found = [f"only the first has {', '.join(missing)}"] if missing else []
    found += [f"only the second has {', '.join(added)}"] if added else []
    found += [
        f"{name} is {_words(first[name])} in the first and {_words(second[name])} in the second" for name in differing
    ]
    return (
        f"{first_path} and {path} do not have the same columns: {'; '.join(found)}; make two sources of them, or name "
        "the columns they share under `columns`"
    )


def _words(kind: Kind) -> str:
    if isinstance(kind, list):
        return f"list of {_words(kind[0])}"
    if isinstance(kind, dict):
        return "{" + ", ".join(f"{name}: {_words(inner)}" for name, inner in kind.items()) + "}"
    return kind
