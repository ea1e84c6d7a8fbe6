"""What a path led to, and what the patterns in it stand for."""

import glob
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """One file that a path led to."""

    root: str
    """Directory that names are relative to, before the items of a list are brought together."""
    inside: str
    """Path relative to `root`."""
    path: str
    nbytes: int
    version: str
    """Empty for a link that leads to no file."""
    is_named: bool
    """By a file path or glob, rather than met in a directory."""


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns that `{a,b}` and `{000..127}` stand for, as shells and WebDataset write shard names."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    first, last, words = match.groups()
    if words is not None:
        choices = words.split(",")
    else:
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        choices = [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [expanded for choice in choices for expanded in expand_braces(before + choice + after)]


def fixed_part(pattern: str) -> str:
    """Return the directory above the first piece of a pattern that has a wildcard."""
    pieces = pattern.split("/")
    wild = next((number for number, piece in enumerate(pieces) if glob.has_magic(piece)), len(pieces) - 1)
    return "/".join(pieces[:wild]) or ("/" if pattern.startswith("/") else "")
