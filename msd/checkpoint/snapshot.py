"""What a store holds, as values: snapshots and journal entries, named by their content."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from msd.core.state import StateDict, canonical_json

STORE_VERSION = 1
_NAME = re.compile(r"^(snapshot|journal)-(\d{8,})(?:-step-(\d+))?-([0-9a-f]{24})\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A file of a store."""

    name: str
    number: int
    size: int
    """Bytes of the file."""
    why_not: str = ""
    """What is wrong with the file, for people; empty for a whole one. What follows is known of whole ones only."""
    run: str = ""
    """Which wrote it."""
    when: str = ""
    """ISO 8601 time at which it was written."""
    lineage: str = ""
    """Of the stretch of steps that it lies on: a load begins another, a resume goes on with the one that it finds."""

    @property
    def is_whole(self) -> bool:
        """Whether it is what was written."""
        return not self.why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Kept):
    """A position that was saved. The largest number is the newest, whatever its step."""

    step: int
    """The step that comes next."""
    journal: int = 0
    """Number of the last journal entry when it was saved: those are part of `state`."""
    state: StateDict | None = None
    """As `client.state_dict()` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Kept):
    """Something that was journalled."""

    record: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a file says."""

    name: str
    kind: str
    """snapshot or journal."""
    number: int
    step: int
    """0 of a journal entry."""
    digest: str
    """Of the content."""


def named(name: str) -> Named | None:
    """Return what a name says, or None if the file is not one of a store's."""
    match = _NAME.match(name)
    if match is None or (match[1] == "snapshot") != (match[3] is not None):
        return None
    return Named(name, match[1], int(match[2]), int(match[3] or 0), match[4])


def written(kind: str, number: int, body: dict[str, Any], *, step: int | None = None) -> tuple[str, bytes]:
    """Return the name and content of a new file: the name carries the digest of the content."""
    content = canonical_json({"kind": f"msd-{kind}", "version": STORE_VERSION, "number": number, **body}).encode()
    at = "" if step is None else f"-step-{step}"
    return f"{kind}-{number:08d}{at}-{_digest(content)}.json", content


def read_snapshot(file: Named, content: bytes | None) -> Snapshot:
    """Return the snapshot of a file."""
    size = len(content or b"")
    body = _body(file, content)
    if isinstance(body, str):
        return Snapshot(name=file.name, number=file.number, step=file.step, size=size, why_not=body)
    return Snapshot(
        name=file.name,
        number=file.number,
        step=file.step,
        size=size,
        run=body["run"],
        when=body["when"],
        lineage=body["lineage"],
        journal=body["journal"],
        state=body["state"],
    )


def read_entry(file: Named, content: bytes | None) -> Entry:
    """Return the journal entry of a file."""
    size = len(content or b"")
    body = _body(file, content)
    if isinstance(body, str):
        return Entry(name=file.name, number=file.number, size=size, why_not=body)
    return Entry(
        name=file.name,
        number=file.number,
        size=size,
        run=body["run"],
        when=body["when"],
        lineage=body["lineage"],
        record=body["record"],
    )


def _body(file: Named, content: bytes | None) -> dict[str, Any] | str:
    """Return what a file says, or what is wrong with it."""
    if content is None:
        return "it is gone"
    if not content:
        return "it is empty"
    if _digest(content) != file.digest:
        return "its content is not what was written: torn or changed"
    try:
        body = json.loads(content)
        version = body["version"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return "it is no JSON of a snapshot or entry"
    if version != STORE_VERSION:
        return f"it is of version {version}, this release reads {STORE_VERSION}"
    found: dict[str, Any] = body
    return found


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()
