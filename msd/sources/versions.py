"""Which version of a file was indexed: what changes when its content does, as far as can be known without reading it.

Local: `size-mtime_ns`. Remote: `size-KEY:stamp`, with the first key of an etag, checksum or time that the store gives.
No part of an identity: the same data elsewhere has other times. It only tells a file that was indexed from one that
was written later.
"""

import datetime as dt
import os
from collections.abc import Mapping
from typing import Any

_TAGS = ("ETag", "etag", "md5Hash", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


def version_of(status: os.stat_result) -> str:
    """Return the version of a local file."""
    return f"{status.st_size}-{status.st_mtime_ns}"


def version_of_info(info: Mapping[str, Any]) -> str:
    """Return the version of a file by what fsspec knows of it."""
    key = next((key for key in (*_TAGS, *_TIMES) if info.get(key) is not None), None)
    return f"{info.get('size')}-" + ("" if key is None else f"{key}:{_stamp(info[key])}")


def has_changed(indexed: str, now: str) -> bool:
    """Return whether two versions are of different content; those that cannot be compared are taken as one.

    Listing a folder and asking for one file may give different keys, or one time in two notations.
    """
    then_key, then_stamp = _parts(indexed)
    now_key, now_stamp = _parts(now)
    return bool(then_stamp and now_stamp) and then_key == now_key and then_stamp != now_stamp


def _stamp(value: Any) -> str:
    if isinstance(value, dt.datetime):
        value = value.timestamp()
    return f"{value:.3f}" if isinstance(value, int | float) else str(value).removeprefix("W/").strip('"')


def _parts(version: str) -> tuple[str, str]:
    """Return the key and the stamp, or neither where the stamp has no notation of its own."""
    key, colon, stamp = version.partition("-")[2].partition(":")
    if not colon:
        return "", key
    is_exact = key in _TAGS or stamp.replace(".", "", 1).isdigit()
    return (key, stamp) if is_exact else ("", "")
