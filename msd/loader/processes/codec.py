"""Rows and what they gave, written down so that they come back as they were: equal values of equal types.

MessagePack alone would turn tuples into lists and times into text, and knows no arrays. So values
are looked at by their exact type: what MessagePack keeps is left to it, a few more types are marked, arrays follow the
text as raw bytes, and what is none of these is refused. Nothing is pickled.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np

from msd.core.sample import Outcome, RawSample, Sample, SampleId, SampleImages
from msd.loader.processes.frames import Frame
from msd.loader.transforms.chain import RowResult
from msd.sources.base import BadRow

_KEPT = frozenset((type(None), bool, int, float, str, bytes))
_ARRAY, _SCALAR, _TUPLE, _TIMEDELTA, _DATETIME = range(1, 6)
_UTC = "utc"
"""Of `datetime.UTC`; a `ZoneInfo` goes by its key, which is never this one."""
_AS_TEXT: dict[type, tuple[int, Callable[[Any], str], Callable[[str], Any]]] = {
    date: (10, date.isoformat, date.fromisoformat),
    Decimal: (11, str, Decimal),
    UUID: (12, str, UUID),
}
_FROM_TEXT = {code: read for code, _, read in _AS_TEXT.values()}
_ARRAY_KINDS = frozenset("biufcmMSU")
_SCALAR_KINDS = frozenset("biufcmM")


class NoEncoding(Exception):
    """A value of a type that has no encoding here."""


class Writer:
    """Writes values down; the arrays among them are gathered on the side."""

    def __init__(self) -> None:
        self.arrays: list[memoryview] = []
        self._nbytes = 0

    def text(self, value: Any) -> bytes:
        """Return a value as text, its arrays added to `arrays`.

        Raises:
            NoEncoding: If something in it has none; nothing was added then.
        """
        before = len(self.arrays), self._nbytes
        try:
            return msgspec.msgpack.encode(self._marked(value))
        except (NoEncoding, OverflowError, ValueError, RecursionError) as error:
            # Whole numbers beyond 64 bits, text that has no UTF-8 form, a list that holds itself.
            del self.arrays[before[0] :]
            self._nbytes = before[1]
            raise NoEncoding(str(error)) from None

    def _marked(self, value: Any) -> Any:
        kind = type(value)
        if kind in _KEPT:
            return value
        if kind is list:
            return value if _KEPT.issuperset(map(type, value)) else [self._marked(inner) for inner in value]
        if kind is dict:
            if any(type(key) is not str for key in value):
                raise NoEncoding("a key that is no text")
            return {key: self._marked(inner) for key, inner in value.items()}
        if kind is tuple:
            return _ext(_TUPLE, [self._marked(inner) for inner in value])
        if kind is np.ndarray and value.dtype.kind in _ARRAY_KINDS:
            return self._array(value)
        if isinstance(value, np.generic) and value.dtype.kind in _SCALAR_KINDS:
            return _ext(_SCALAR, [value.dtype.str, value.tobytes()])
        if kind in _AS_TEXT:
            code, write, _ = _AS_TEXT[kind]
            return _ext(code, write(value))
        if kind is timedelta:
            return _ext(_TIMEDELTA, [value.days, value.seconds, value.microseconds])
        if kind in (datetime, time):
            return _ext(_DATETIME, [kind is time, value.replace(tzinfo=None).isoformat(), value.fold, _zone(value)])
        raise NoEncoding(kind.__name__)

    def _array(self, array: Any) -> msgspec.msgpack.Ext:
        whole = np.ascontiguousarray(array)
        marked = _ext(_ARRAY, [self._nbytes, array.dtype.str, array.shape])
        if whole.nbytes:
            self.arrays.append(whole.reshape(-1).view(np.uint8).data)
            self._nbytes += whole.nbytes
        return marked


def read(frame: Frame) -> Any:
    """Return what was written; arrays are copies of their own."""
    buffer = frame.arrays[0] if frame.arrays else memoryview(b"")

    def hook(code: int, head: memoryview) -> Any:
        value = msgspec.msgpack.decode(head, ext_hook=hook)
        if code == _ARRAY:
            start, name, shape = value
            dtype = np.dtype(name)
            count = math.prod(shape)
            flat = np.frombuffer(buffer, dtype, count, start) if count and dtype.itemsize else np.empty(count, dtype)
            return flat.reshape(shape).copy()
        if code == _TUPLE:
            return tuple(value)
        if code == _SCALAR:
            return np.frombuffer(value[1], np.dtype(value[0]))[0]
        if code == _TIMEDELTA:
            return timedelta(*value)
        if code == _DATETIME:
            is_time, text, fold, zone = value
            return (time if is_time else datetime).fromisoformat(text).replace(fold=fold, tzinfo=_zone_from(zone))
        return _FROM_TEXT[code](value)

    return msgspec.msgpack.decode(frame.text, ext_hook=hook)


def rows_frame(
    source: str, recipe: bytes | None, rows: Sequence[tuple[int, RawSample | BadRow]]
) -> tuple[Frame, list[int]]:
    """Return the message that asks for rows to be transformed.

    Args:
        source: Their source.
        recipe: How its chain is built, if it has to be.
        rows: (ordinal, row) each.

    Returns:
        The message, and the indices of the rows in it: those that have an encoding.
    """
    writer = Writer()
    texts: list[msgspec.Raw] = []
    sent: list[int] = []
    for index, (ordinal, row) in enumerate(rows):
        with contextlib.suppress(NoEncoding):
            texts.append(msgspec.Raw(writer.text([ordinal, row])))
            sent.append(index)
    return Frame(msgspec.msgpack.encode([source, recipe, texts]), writer.arrays), sent


def plain_results(results: Sequence[RowResult]) -> list[Any]:
    """Return what rows gave as values that can be written."""
    return [_plain_result(result) for result in results]


def results_from(plain: Sequence[Any], source: str, ordinals: Sequence[int]) -> list[RowResult]:
    """Return what the rows at these ordinals gave, from `plain_results` as it was read."""
    return [_result(one, source, ordinal) for one, ordinal in zip(plain, ordinals, strict=True)]


def _ext(code: int, value: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(value))


def _zone(value: datetime | time) -> str | None:
    zone = value.tzinfo
    if zone is None:
        return None
    if zone is UTC:
        return _UTC
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    raise NoEncoding(f"a time with the zone {type(zone).__name__}")


def _zone_from(name: str | None) -> tzinfo | None:
    return None if name is None else UTC if name == _UTC else ZoneInfo(name)


def _plain_result(result: RowResult) -> list[Any]:
    counts = [
        result.num_empty, result.num_split, result.num_truncated_tokens, result.num_dropped, result.num_unlabelled,
        int(result.lacked_memory),
    ]  # fmt: skip
    return [int(result.outcome), result.reason, counts, [_plain_sample(sample) for sample in result.samples]]


def _plain_sample(sample: Sample) -> list[Any]:
    images = sample.images
    return [
        sample.tokens_T,
        sample.num_image_tokens,
        sample.trained_T,
        None if images is None else [images.pixels_PF, images.grids_I3, images.starts_I],
    ]


def _result(plain: Sequence[Any], source: str, ordinal: int) -> RowResult:
    outcome, reason, (num_empty, num_split, num_truncated, num_dropped, num_unlabelled, lacked), samples = plain
    return RowResult(
        outcome=Outcome(outcome),
        reason=reason,
        samples=tuple(_sample(one, SampleId(source, ordinal, part)) for part, one in enumerate(samples)),
        num_empty=num_empty,
        num_split=num_split,
        num_truncated_tokens=num_truncated,
        num_dropped=num_dropped,
        num_unlabelled=num_unlabelled,
        lacked_memory=bool(lacked),
    )


def _sample(plain: Sequence[Any], sample_id: SampleId) -> Sample:
    tokens_T, num_image_tokens, trained_T, images = plain
    return Sample(
        id=sample_id,
        tokens_T=tokens_T,
        num_image_tokens=num_image_tokens,
        trained_T=trained_T,
        images=None if images is None else SampleImages(pixels_PF=images[0], grids_I3=images[1], starts_I=images[2]),
    )
