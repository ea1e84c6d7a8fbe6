"""Paths in, findings out: which sources there are, in which format, and what would make samples of their rows."""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from msd.config import Config, parse_config
from msd.core.checks import working_directory
from msd.core.sample import Outcome
from msd.core.written import Written
from msd.errors import ConfigError, InputError, SourceError
from msd.loader.transforms.chain import build_chain
from msd.loader.transforms.tokenizer import load_tokenizer
from msd.look import fields, sniff
from msd.look.groups import Group, Place, check_exists, groups_below
from msd.sources.base import BadRow
from msd.sources.config import PACKED, ReaderConfig
from msd.sources.packed import read_written

_log = logging.getLogger("msd")

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
    max_rate: float | None = None
    """Rate of failures to allow where rows that were looked at fail; None where none does."""
    warnings: tuple[str, ...] = ()
    """What to know before training on it, a sentence each."""
    batch: Mapping[str, Any] = field(default_factory=dict)
    """Of packed sequences: the sizes with which a run streams the steps as they were written."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of packed sequences: the tokenizer that made them, if it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything that was seen."""

    findings: tuple[Finding, ...]
    tokenizer: str
    """Path of a tokenizer.json, or `bytes`."""
    tokenizer_reason: str
    left_out: tuple[str, ...]
    """Files and folders that are no source, each with the reason."""

    @property
    def needs_tokenizer(self) -> bool:
        """Whether some source is not made of tokens already."""
        return not all(finding.batch for finding in self.findings)


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

    What was assumed (the tokenizer of bytes, files left out, rows that fail) is told in the log `msd`.

    Raises:
        InputError: If a path does not exist, or nothing in it can be read as a source.
    """
    from msd.look.recipe import render_yaml

    seen = look(paths, tokenizer)
    for assumed in assumptions(seen):
        _log.warning("msd.init: %s", assumed)
    text = render_yaml(seen, base=None, sequence_length=sequence_length)
    return parse_config(text, base=working_directory(), name="msd.init")


def assumptions(seen: "Look") -> list[str]:
    """Return what a user should know of a look, a line each: what was assumed, what was left out, what fails."""
    told = [f"source {finding.name!r}: {warning}" for finding in seen.findings for warning in finding.warnings]
    if seen.needs_tokenizer and seen.tokenizer == "bytes":
        told.insert(0, f"tokenizer bytes: {seen.tokenizer_reason}")
    return told + [f"left out: {reason}" for reason in seen.left_out]


def look(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], tokenizer: str | os.PathLike[str] | None = None
) -> Look:
    """Return what is found under `paths`: reads the beginning of one file of each kind, indexes nothing."""
    asked = _asked(paths)
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


def _asked(paths: Any) -> list[str | os.PathLike[str]]:
    """Return the paths that were asked for; each is there, as far as that can be told at once."""
    # A DataFrame can be iterated too: over the names of its columns.
    several = isinstance(paths, list | tuple | set | Iterator)
    asked = list(paths) if several else [paths]
    wrong = next((path for path in asked if not isinstance(path, str | os.PathLike)), None)
    if wrong is not None:
        kind = f"{type(paths).__name__} with {type(wrong).__name__}" if several else type(wrong).__name__
        raise ConfigError(
            f"msd.init looks at files, folders, globs and URLs, got {kind}; for data in memory use "
            'msd.Config(sources={"name": data}, ...)'
        )
    if not asked:
        raise InputError("nothing to look at; give at least one file, folder, glob or URL")
    for path in asked:
        check_exists(os.fspath(path))
    return asked


def _finding(
    found: tuple[Place, Group], tokenize: dict[str, Any], taken: list[str], left_out: list[str]
) -> Finding | None:
    place, group = found
    name = _free_name(group, taken)
    reasons = [f"{PurePosixPath(group.files[0]).name} {group.reason}"]
    seen: list[fields.Field] = []
    warnings: list[str] = []
    max_rate = None
    batch: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if group.format == PACKED:
        transforms: list[dict[str, Any]] = []
        try:
            written = read_written(name, ReaderConfig(format=PACKED, path=group.patterns[0]))
        except SourceError as error:
            left_out.append(_one_line(error))
            return None
        batch = _batch_of(written)
        options = _options_of(written, tokenize["tokenizer"])
    elif group.format == "text":
        transforms = [{**tokenize, "field": "text"}]
    else:
        try:
            rows = _rows(place, group)
        except Exception as error:
            left_out.append(f"{place.url(group.files[0])} cannot be read as {group.format}: {_one_line(error)}")
            return None
        seen = fields.fields_of([row for row in rows if row is not None])
        transforms, why = fields.choose(seen, tokenize)
        reasons += why
        if not transforms:
            left_out.append(f"{place.url(group.root)} ({group.format}): {why[-1]}")
            return None
        if fields.are_messages(transforms):
            warnings.append(fields.TEMPLATE_WARNING)
        failed, reason, is_barren = _tried(rows, transforms)
        if failed == len(rows):
            left_out.append(f"{place.url(group.root)} ({group.format}): every row looked at fails: {reason}")
            return None
        if is_barren and fields.are_messages(transforms):
            left_out.append(
                f"{place.url(group.root)} ({group.format}): no row looked at gives a sample: nothing in its "
                "conversations is learned"
            )
            return None
        if failed:
            # Twice what was seen and a little more: a glance at one file is a small sample.
            max_rate = min(1.0, math.ceil(20 * (2 * failed / len(rows) + 0.05)) / 20)
            warnings.append(
                f"{failed} of the {len(rows)} rows looked at fail ({reason}); such rows are skipped and counted, and "
                f"max_rate {max_rate:g} allows them"
            )
    return Finding(
        name=name,
        format=group.format,
        path=group.patterns,
        num_files=len(group.files),
        nbytes=group.nbytes,
        fields=tuple(seen),
        transforms=tuple(transforms),
        reasons=tuple(reasons),
        max_rate=max_rate,
        warnings=tuple(warnings),
        batch=batch,
        options=options,
    )


def _batch_of(written: Written) -> dict[str, Any]:
    """Return settings with which a run streams the very steps that were written."""
    size = written.sequences_per_step or written.num_buckets * written.num_microbatches
    return {
        "sequence_length": written.sequence_length,
        "global_batch_size": size,
        "document_multiple": written.document_multiple,
        "dp": written.num_buckets,
        "num_microbatches": written.num_microbatches,
    }


def _options_of(written: Written, tokenizer: str) -> dict[str, Any]:
    """Return the tokenizer as an option, if it is that of the sequences."""
    try:
        is_theirs = load_tokenizer(tokenizer).digest in written.tokenizers
    except ConfigError:
        return {}
    return {"tokenizer": tokenizer} if is_theirs else {}


def _tried(rows: Sequence[dict[str, Any] | None], transforms: list[dict[str, Any]]) -> tuple[int, str, bool]:
    """Return how many of the rows fail in the transforms as in a run, why the first does, and whether none is left."""
    sources: Any = {"rows": {"rows": [{}], "transforms": transforms}}
    source = Config(sources=sources).sources["rows"]
    try:
        chain = build_chain(
            "rows", source.transforms, seed=0, sequence_length=DEFAULT_SEQUENCE_LENGTH, overflow="split"
        )
    except ConfigError:
        # What the configuration lacks, such as the id of an image placeholder, is for `msd validate` to name.
        return 0, "", False
    results = chain.apply(list(enumerate(BadRow("not a JSON object") if row is None else row for row in rows)))
    reasons = [result.reason for result in results if result.outcome is Outcome.FAILED]
    is_barren = not any(result.samples for result in results)
    return len(reasons), reasons[0] if reasons else "", is_barren


def _rows(place: Place, group: Group) -> list[dict[str, Any] | None]:
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
