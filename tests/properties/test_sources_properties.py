"""Any bytes, cut anywhere, give the same rows; any archive gives its members."""

import gzip
import io
import itertools
import tarfile

import hypothesis.strategies as st
import numpy as np
import zstandard
from hypothesis import given, settings

from msd.sources.lines import LineScanner, is_row, rows_of_block
from msd.sources.streams import StreamCursor, decode
from msd.sources.tar_members import tar_members

pieces = st.lists(
    st.sampled_from(
        [b"\n", b"\r\n", b" ", b"\t", b"\xef\xbb\xbf", b"\xef", b"\xef\xbb", b"{}", b'{"a": 1}', b"x" * 30]
    ),
    max_size=40,
)


def scan(data, sizes, cap):
    scanner, blocks, start = LineScanner(cap), [], 0
    for size in itertools.chain(sizes, itertools.repeat(len(data) + 1)):
        if start >= len(data):
            break
        blocks += scanner.feed(data[start : start + size])
        start += size
    return blocks + scanner.finish()


@settings(max_examples=300)
@given(pieces=pieces, sizes=st.lists(st.integers(1, 20), max_size=30), cap=st.integers(1, 80))
def test_blocks_tile_the_bytes_end_at_lines_and_hold_the_rows(pieces, sizes, cap):
    data = b"".join(pieces)
    blocks, start = scan(data, sizes, cap), 0
    for num_rows, nbytes in blocks:
        block = data[start : start + nbytes]
        start += nbytes
        assert len(rows_of_block(block)) == num_rows
        assert nbytes <= cap or block.count(b"\n", 0, -1) == 0
        assert block.endswith(b"\n") or start == len(data)
    assert start == len(data)
    assert sum(rows for rows, _ in blocks) == sum(map(is_row, data.split(b"\n")))


@settings(max_examples=200)
@given(pieces=pieces, sizes=st.lists(st.integers(1, 20), max_size=30), cap=st.integers(1, 80))
def test_how_bytes_arrive_does_not_change_where_they_are_cut(pieces, sizes, cap):
    data = b"".join(pieces)
    assert scan(data, sizes, cap) == scan(data, [], cap)


@settings(max_examples=100)
@given(
    members=st.lists(st.binary(max_size=40_000), max_size=6),
    codec=st.sampled_from(["gzip", "zstd"]),
    asks=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50_000)), max_size=12),
)
def test_a_stream_is_read_at_rising_positions_as_if_it_were_plain(members, codec, asks):
    pack = gzip.compress if codec == "gzip" else zstandard.compress
    packed, data = [pack(member) for member in members], b"".join(members)
    file = io.BytesIO(b"".join(packed))
    found = {}
    for offset, chunk in decode(file, codec, path="x"):
        found[offset] = found.get(offset, b"") + chunk
    starts = np.cumsum([0, *map(len, packed)]).tolist()
    assert found == {start: member for start, member in zip(starts, members, strict=False) if member}
    cursor, position = StreamCursor(file, codec, path="x"), 0
    for step, size in asks:
        position += step
        assert cursor.read(position, size) == data[position : position + size]
        assert cursor.read(position, size // 2) == data[position : position + size // 2]
        cursor.forget(position)


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cc"]), min_size=1, max_size=150
)


@settings(max_examples=100)
@given(
    members=st.lists(st.tuples(names, st.binary(max_size=2000)), max_size=8),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_members_are_those_that_the_standard_library_wrote(members, format):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    packed = out.getvalue()
    for nbytes in (len(packed), None):
        read = tar_members(lambda begin, size: packed[begin : begin + size], path="x", nbytes=nbytes)
        found = [(m.name, packed[m.data_start : m.data_start + m.size]) for m in read]
        assert found == members
