"""Paths in, findings out: which sources there are, in which format, and what would make samples of their rows."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from msd.config import Config, parse_config
from msd.errors import InputError, SourceError
from msd.look import fields, sniff
from msd.look.groups import Group, Place, groups_below

DEFAULT_SEQUENCE_LENGTH = 2048
_EOS_TOKENS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>")
_TOKENIZER_LEVELS = 3
"""How far above the data a tokenizer.json is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One source that was found."""

    name: str
    format: str
    path: tuple[str, ...]
    """Globs, files or a directory, absolute or a URL."""
    num_files: int
    nbytes: int
    fields: tuple[fields.Field, ...]
    transforms: tuple[dict[str, Any], ...]
    reasons: tuple[str, ...]
    """Why this format and these fields, a clause each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything that was seen."""

    findings: tuple[Finding, ...]
    tokenizer: str
    """Path of a tokenizer.json, or `bytes`."""
    tokenizer_reason: str
    left_out: tuple[str, ...]
    """Files and folders that are no source, each with the reason."""


def init(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    tokenizer: str | os.PathLike[str] | None = None,
    *,
    sequence_length: int = DEFAULT_SEQUENCE_LENGTH,
) -> Config:
    """Look at data and return a configuration that is ready to run: one source for each folder and format found.

    `msd init PATH...` writes the same thing as YAML with comments.

    Args:
        paths: Files, folders, globs or fsspec URLs.
        tokenizer: A tokenizer.json, or `bytes`; None looks for one in and above the paths, else takes `bytes`.
        sequence_length: Tokens of a training sequence.

    Raises:
        InputError: If a path does not exist, or nothing in it can be read as a source.
    """
    from msd.look.recipe import render_yaml

    text = render_yaml(look(paths, tokenizer), base=None, sequence_length=sequence_length)
    return parse_config(text, base=Path.cwd(), name="msd.init")


def look(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], tokenizer: str | os.PathLike[str] | None = None
) -> Look:
    """Return what is found under `paths`: reads the beginning of one file of each kind, indexes nothing."""
    asked = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not asked:
        raise InputError("nothing to look at; give at least one file, folder, glob or URL")
    chosen, reason = _tokenizer(asked, tokenizer)
    tokenize: dict[str, Any] = {"kind": "tokenize", "tokenizer": chosen}
    if chosen == "bytes" or _has_eos(chosen):
        tokenize["append_eos"] = True
    findings: list[Finding] = []
    left_out: list[str] = []
    for path in asked:
        for group in groups_below(os.fspath(path), left_out):
            finding = _finding(group, tokenize, [known.name for known in findings], left_out)
            if finding is not None:
                findings.append(finding)
    if not findings:
        seen = f": {'; '.join(left_out[:3])}" if left_out else ""
        raise SourceError(
            f"found no source in {', '.join(repr(os.fspath(path)) for path in asked)}{seen}; "
            "msd reads Parquet, JSON lines (plain, gz, zst), WebDataset tar, Arrow, saved Hugging Face datasets, text"
        )
    return Look(findings=tuple(findings), tokenizer=chosen, tokenizer_reason=reason, left_out=tuple(left_out))


def _finding(
    found: tuple[Place, Group], tokenize: dict[str, Any], taken: list[str], left_out: list[str]
) -> Finding | None:
    place, group = found
    name = _free_name(group, taken)
    reasons = [f"{PurePosixPath(group.files[0]).name} {group.reason}"]
    seen: list[fields.Field] = []
    if group.format == "text":
        transforms: list[dict[str, Any]] = [{**tokenize, "field": "text"}]
    else:
        try:
            rows = _rows(place, group)
        except Exception as error:
            left_out.append(f"{place.url(group.files[0])} cannot be read as {group.format}: {_one_line(error)}")
            return None
        seen = fields.fields_of(rows)
        transforms, why = fields.choose(seen, tokenize)
        reasons += why
        if not transforms:
            left_out.append(f"{place.url(group.root)} ({group.format}): {why[-1]}")
            return None
    return Finding(
        name=name,
        format=group.format,
        path=group.patterns,
        num_files=len(group.files),
        nbytes=group.nbytes,
        fields=tuple(seen),
        transforms=tuple(transforms),
        reasons=tuple(reasons),
    )


def _rows(place: Place, group: Group) -> list[dict[str, Any]]:
    """Return the first rows of the first file that has any."""
    kind = "arrow" if group.format == "hf" else group.format
    files = [file for file in group.files if group.format != "hf" or file.endswith(".arrow")]
    for file in files[:4]:
        rows = sniff.first_rows(file, kind, place.open)
        if rows:
            return rows
    return []


def _free_name(group: Group, taken: list[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", group.name).strip("_") or "data"
    candidates = [name, f"{name}_{group.format}", *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in candidates if candidate not in taken)


def _tokenizer(paths: Sequence[str | os.PathLike[str]], asked: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the tokenizer and why it was chosen."""
    if asked is not None:
        given = os.fspath(asked)
        if given == "bytes":
            return given, "as asked: UTF-8 bytes, 259 ids"
        if not Path(given).expanduser().is_file():
            raise InputError(f"tokenizer {given!r} is not a file; give the path of a tokenizer.json, or bytes")
        return os.path.abspath(os.path.expanduser(given)), "as asked"
    for path in paths:
        if "://" in os.fspath(path):
            continue
        start = Path(os.fspath(path)).expanduser().absolute()
        for folder in (start, *start.parents[:_TOKENIZER_LEVELS]):
            if (folder / "tokenizer.json").is_file():
                return str(folder / "tokenizer.json"), f"found in {folder}"
    return "bytes", "no tokenizer.json lies in or above the data: UTF-8 bytes, 259 ids, are taken until you name one"


def _has_eos(tokenizer: str) -> bool:
    try:
        described = json.loads(Path(tokenizer).read_text(encoding="utf-8"))
        known = {token["content"] for token in described["added_tokens"]} | set(described["model"]["vocab"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return any(token in known for token in _EOS_TOKENS)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
