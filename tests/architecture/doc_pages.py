"""The pages of the repository and the blocks on them, for tests that hold pages to what they say.

A block is run by a test, or a comment on the line before its fence says why not; the comment does not show:

- `<!-- needs: a Kubernetes cluster -->`: what CI lacks, one of `NEEDS`
- `<!-- run by: tests/integration/test_x.py -->`: a test, or a script of CI, that runs the same command
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "configs/README.md", "perf/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

NEEDS = {
    "a Kubernetes cluster",
    "a SLURM cluster",
    "a package index",
    "a quiet machine",
    "another program",  # systemd, Prometheus, ...: the block is its configuration
    "Lightning",
    "Megatron-Core",
    "several machines",
    "transformers",
}
"""What a machine of CI lacks."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+): (?P<what>.+?) -->\n)?^(?P<fence>```+)(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """Of its first line of text."""
    language: str
    text: str
    mark: str | None = None
    """`needs`, `run by` or None."""
    what: str = ""
    """Is needed, or runs it."""

    @property
    def name(self) -> str:
        """Where it is."""
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name
        return f"{page} line {self.line}"


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """Yield the blocks of a page, of these languages or all."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        if not languages or found["language"] in languages:
            line = text.count("\n", 0, found.start("text")) + 1
            yield Block(page, line, found["language"], found["text"], found["mark"], found["what"] or "")


def unmarked(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page that a test of these pages has to run."""
    return [block for block in blocks(page, *languages) if block.mark is None]
