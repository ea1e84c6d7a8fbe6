import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from msd.loader.processes.codec import NoEncoding, Writer, read, rows_frame
from msd.loader.processes.frames import Frame
from msd.sources.base import BadRow


def again(value):
    writer = Writer()
    text = writer.text(value)
    return read(Frame(text, [memoryview(b"".join(writer.arrays))]))


def same(first, second):
    """Equal, of the same types at any depth, bit by bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return repr(first) == repr(second)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -(2**63), 2**64 - 1, 0.1, -0.0, float("nan"), float("inf"), "", "ä🙂", b"\x00\xff"),
        *([], [1, "a", None, [2.5, []]], {}, {"b": 1, "a": {"c": [True]}}, (), (1, (2, [3]))),
        *(np.arange(5), np.arange(6, dtype=">i4").reshape(2, 3), np.array(7.5), np.empty((0, 4), np.float16)),
        *(np.array(["ab", "c"]), np.array([b"ab"]), np.array(["2024-01-02"], "M8[D]"), np.array([1 + 2j])),
        *(np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(10)[::2], np.array([True, False])),
        *(np.int64(3), np.float32(0.1), np.bool_(True), np.datetime64("2024-01-02T03", "s")),
        *(date(2024, 2, 29), time(1, 2, 3, 4), time(5, tzinfo=UTC), timedelta(-1, 2, 3), Decimal("1.10")),
        *(datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 2, fold=1), datetime(2024, 1, 2, tzinfo=UTC)),
        *(datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), uuid.UUID(int=5)),
        {"a": np.arange(3), "b": [np.arange(2.0), (np.zeros(1),)], "c": "d"},
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was(value):
    assert same(again(value), value)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        *({1, 2}, bytearray(b"a"), 2**64, "\ud800", Text("a"), {1: 2}, object(), 1j, range(3)),
        *(np.array([object()]), np.ma.masked_array([1]), np.array([(1, 2.0)], "i4,f8"), np.str_("a")),
        datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=1))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_come_back_as_another_is_refused(value):
    with pytest.raises(NoEncoding):
        again([value])


def test_a_list_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(NoEncoding):
        again(endless)


def test_rows_that_are_refused_leave_nothing_behind():
    rows = [(3, {"a": np.arange(4)}), (4, {"a": np.arange(5), "b": {1}}), (5, BadRow("x")), (6, {"a": np.arange(6)})]
    frame, sent = rows_frame("web", b"how", rows)
    assert sent == [0, 3]
    source, recipe, (first, last) = read(Frame(frame.text, [memoryview(b"".join(frame.arrays))]))
    assert (source, recipe) == ("web", b"how")
    assert same(first, [3, {"a": np.arange(4)}])
    assert same(last, [6, {"a": np.arange(6)}])


def test_arrays_that_come_back_are_their_readers_own():
    value = np.arange(4)
    value.flags.writeable = False
    assert again(value).flags.writeable
