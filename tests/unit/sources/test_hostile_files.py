"""Files that somebody made to do harm: they name places, claim sizes and unpack without end, and get nowhere."""

import gzip
import io
import json
import struct
import tarfile
import tracemalloc
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from PIL import Image, TiffImagePlugin

from msd.errors import ConfigError, SourceError
from msd.look import init
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.jsonl import parse_line
from msd.sources.open import open_reader
from msd.sources.parquet import check_sizes

MIB = 1 << 20


def config(path, format, **changes):
    return ReaderConfig(path=str(path), format=format, shuffle=ShuffleConfig(block_bytes=8000), **changes)


def rows_of(path, format, **changes):
    chosen = config(path, format, **changes)
    blocks = index_sources({"one": chosen})["one"]
    reader = open_reader("one", chosen, blocks)
    try:
        return [
            row
            for block in range(blocks.num_blocks)
            for row in reader.read_block(block, _all(blocks.num_rows_B[block]))
        ]
    finally:
        reader.close()


def _all(count):
    import numpy as np

    return np.arange(int(count), dtype=np.int64)


def peak_bytes(function):
    """Return what a function took at most besides what was there."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Archives: names are only names, and nothing is ever written out.


def archive(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data, changes in members:
            member = tarfile.TarInfo(name)
            for field, value in changes.items():
                setattr(member, field, value)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_names_that_lead_elsewhere_are_only_names_and_links_and_devices_are_no_rows(tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    (inside / "secret.txt").write_text("secret")
    names = ["../../evil.txt", "/etc/evil.txt", "a/../../../evil.txt", "..\\evil.txt"]
    members = [(name, b"words", {}) for name in names]
    members += [
        ("link.txt", b"", {"type": tarfile.SYMTYPE, "linkname": "secret.txt"}),
        ("hard.txt", b"", {"type": tarfile.LNKTYPE, "linkname": "secret.txt"}),
        ("device.txt", b"", {"type": tarfile.CHRTYPE}),
        ("block.txt", b"", {"type": tarfile.BLKTYPE}),
        ("pipe.txt", b"", {"type": tarfile.FIFOTYPE}),
    ]
    (inside / "data.tar").write_bytes(archive(members))
    before = sorted(tmp_path.rglob("*"))
    rows = rows_of(inside / "data.tar", "webdataset")
    # Of `..\evil.txt` the first dot begins the field: the row has no key.
    assert [row["__key__"] for row in rows] == ["../../evil", "/etc/evil", "a/../../../evil"]
    assert {row["txt"] for row in rows} == {"words"}
    assert init([str(inside / "data.tar")], tokenizer="bytes").sources
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/etc/evil.txt").exists()


def header(name, size, kind=b"0"):
    """Return a tar header that claims a size."""
    field = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    packed = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"00000000000\0" + b" " * 8 + kind
    packed = packed.ljust(257, b"\0") + b"ustar\x0000"
    packed = packed.ljust(512, b"\0")
    return packed[:148] + b"%06o\0 " % sum(packed) + packed[156:]


def pax(record):
    body = b"%d %s\n" % (len(record) + len(b"%d" % (len(record) + 4)) + 2, record)
    return header(b"x", len(body), b"x") + body.ljust(512, b"\0")


def with_size(size):
    """Return an archive with a record of a size in front of its second member."""
    first = header(b"0.txt", 2) + b"ok".ljust(512, b"\0")
    return first + pax(b"size=" + size) + header(b"1.txt", 2) + b"ok".ljust(512, b"\0") + bytes(1024)


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (with_size(b"-1536"), "there is a size of '-1536'"),
        (with_size(b"9" * 30), "there is a size of '9999"),
        (with_size(b"0x10"), "there is a size of '0x10'"),
        (header(b"0.txt", 1 << 60) + bytes(2048), "is truncated"),
        (header(b"x", 1 << 34, b"x") + bytes(2048), "an extension header of 17179869184 bytes"),
        (header(b"L", 1 << 34, b"L") + bytes(2048), "an extension header of 17179869184 bytes"),
    ],
    ids=["back", "huge", "no number", "huge member", "huge record", "huge name"],
)
def test_sizes_that_an_archive_claims_lead_neither_back_nor_to_memory(tmp_path, data, said, packed):
    path = tmp_path / "data.tar"
    path.write_bytes(packed(data))

    def index():
        with pytest.raises(SourceError, match=said):
            index_sources({"one": config(path, "webdataset")})

    assert peak_bytes(index) < 32 * MIB


def test_records_that_say_nothing_of_a_member_are_not_kept(tmp_path):
    other = b"".join(pax(b"comment%d=%s" % (number, b"x" * 400)) for number in range(2000))
    (tmp_path / "data.tar").write_bytes(other + pax(b"path=a.txt") + header(b"b.txt", 2) + b"ok".ljust(512, b"\0"))
    assert rows_of(tmp_path / "data.tar", "webdataset") == [{"__key__": "a", "txt": "ok"}]


# What unpacks a thousandfold.


def gzip_bomb(path, unit, count):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(count):
            file.write(unit)


def zstd_bomb(path, unit, count):
    with path.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
        for _ in range(count):
            file.write(unit)


@pytest.mark.parametrize(("ending", "bomb"), [("gz", gzip_bomb), ("zst", zstd_bomb)])
@pytest.mark.parametrize("unit", [b" " * MIB, b"x" * MIB], ids=["blank", "one line"])
def test_a_line_without_end_is_refused_by_its_size_and_never_held(tmp_path, ending, bomb, unit):
    path = tmp_path / f"bomb.jsonl.{ending}"
    bomb(path, unit, 256)
    assert path.stat().st_size < 2 * MIB

    def index():
        with pytest.raises(SourceError, match=r"has a row of 268435456 bytes, unpacked, above max_row_bytes 33554432"):
            index_sources({"one": config(path, "jsonl", max_row_bytes="32MiB")})

    # A Zstandard frame that repeats one byte expands 32,000 times: what it is fed at once gives 32 MiB.
    assert peak_bytes(index) < (32 if ending == "gz" else 100) * MIB


def test_a_blank_line_as_long_as_a_file_costs_no_more_than_reading_it(tmp_path):
    path = tmp_path / "blank.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(48):
            file.write(b" " * MIB)
        file.write(b'\n{"text": "x"}\n')
    assert peak_bytes(lambda: index_sources({"one": config(path, "jsonl")})) < 32 * MIB


@pytest.mark.parametrize("blank", [b" " * 9, b"\xef\xbb\xbf" + b" " * 9, b"\t\r" * 9, b"\xef\xbb\xbf"])
@pytest.mark.parametrize("then", [b"", b'{"a": 1}', b"\xef\xbb\xbf", b"\xef\xbb\xbf {}"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_blank_beginnings_are_told_alike_in_whatever_pieces_they_come(blank, then, chunk):
    from msd.sources.lines import LineScanner, is_row

    data = blank + then + b"\n" + b'{"b": 2}\n'
    scanner = LineScanner(1 << 20)
    found = [scanner.feed(data[start : start + chunk]) for start in range(0, len(data), chunk)]
    blocks = [block for some in found for block in some] + scanner.finish()
    assert sum(rows for rows, _ in blocks) == sum(is_row(line) for line in data.split(b"\n"))
    assert sum(nbytes for _, nbytes in blocks) == len(data)


def test_a_packed_member_without_end_is_refused_by_its_size(tmp_path):
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header(b"0.txt", 64 * MIB))
        for _ in range(64):
            file.write(bytes(MIB))
        file.write(bytes(1024))

    def index():
        with pytest.raises(SourceError, match="above max_row_bytes 33554432"):
            index_sources({"one": config(path, "webdataset", max_row_bytes="32MiB")})

    assert peak_bytes(index) < 32 * MIB


def test_the_bound_counts_for_files_that_were_indexed_before(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"text": "x" * 20_000}) + "\n")
    index_sources({"one": config(path, "jsonl")})
    with pytest.raises(SourceError, match="above max_row_bytes 10000"):
        index_sources({"one": config(path, "jsonl", max_row_bytes=10_000)})


@pytest.mark.parametrize("size", [0, -1, "2TiB", "big"])
def test_a_bound_that_cannot_be_is_refused(size):
    with pytest.raises(ConfigError, match="max_row_bytes"):
        ReaderConfig(path="a", max_row_bytes=size)


def test_a_frame_that_wants_a_window_of_gigabytes_is_refused(tmp_path):
    # Frame header: magic, descriptor without content size, window of 2**41 bytes; then one empty last block.
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\xff" + b"\x01\x00\x00")
    with pytest.raises(SourceError, match="its zstd data cannot be decoded"):
        index_sources({"one": config(tmp_path / "a.jsonl.zst", "jsonl")})


def test_looking_at_an_archive_unpacks_no_more_than_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("msd.look.sniff._ARCHIVE_BYTES", 8 * MIB)
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header(b"0.txt", 64 * MIB))
        for _ in range(64):
            file.write(bytes(MIB))
        file.write(bytes(1024))

    def look():
        with pytest.raises((SourceError, ConfigError)):
            init([str(path)], tokenizer="bytes")

    assert peak_bytes(look) < 40 * MIB


# JSON and columns.


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": ' + b"9" * 2_000_000 + b"}",
        b'{"a": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"a": ' * 200_000,
        b'{"a": "\\ud800' + b"\\ud800" * 10 + b'"',
        b"[" * 1_000_000,
    ],
    ids=["digits", "deep", "deep and open", "surrogates", "brackets"],
)
def test_json_that_would_take_without_end_is_a_bad_row(line):
    found = parse_line(line)
    assert isinstance(found, BadRow)
    assert len(found.reason) < 300


def test_deep_json_in_an_archive_is_a_bad_row_and_nothing_to_look_at(tmp_path):
    deep = b"[" * 500_000
    (tmp_path / "data.tar").write_bytes(archive([("0.json", deep, {}), ("1.json", b"{}", {})]))
    bad, good = rows_of(tmp_path / "data.tar", "webdataset")
    assert isinstance(bad, BadRow)
    assert good == {"__key__": "1", "json": {}}
    with pytest.raises((SourceError, ConfigError)):
        init([str(tmp_path / "data.tar")], tokenizer="bytes")


@pytest.mark.parametrize("group", [(-1, 10), (10, -1), (1 << 41, 10), (10, 1 << 62)])
def test_a_parquet_footer_that_states_what_no_machine_holds_is_refused(group):
    with pytest.raises(SourceError, match=r"a\.parquet is damaged: its footer states .* for row group 1"):
        check_sizes([(1, 1), group], "a.parquet")
    assert check_sizes([(1, 1), (0, 0)], "a.parquet") == [(1, 1), (0, 0)]


@pytest.mark.parametrize("listed", ["../outside.arrow", "/etc/passwd", "inside/../../outside.arrow"])
def test_a_saved_dataset_lists_only_files_that_lie_in_its_folder(tmp_path, listed):
    table = pa.table({"text": ["secret"]})
    with pa.OSFile(str(tmp_path / "outside.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": listed}]}))
    with pytest.raises(SourceError, match="which does not exist; save the dataset again"):
        index_sources({"one": config(saved, "hf")})


def test_a_state_of_a_saved_dataset_that_is_nested_without_end_is_refused(tmp_path):
    (tmp_path / "state.json").write_bytes(b"[" * 1_000_000)
    with pytest.raises(SourceError, match=r"state\.json cannot be read"):
        index_sources({"one": config(tmp_path, "hf")})


# Images.


def test_a_later_page_that_claims_more_pixels_is_refused_before_it_is_decoded(monkeypatch):
    from msd.loader.transforms.base import BadImage
    from msd.loader.transforms.decode import decode_frames

    out = io.BytesIO()
    pages = [Image.new("RGB", (8, 8)), Image.new("RGB", (400, 400))]
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    loaded = []
    original = TiffImagePlugin.TiffImageFile.load
    monkeypatch.setattr(
        TiffImagePlugin.TiffImageFile, "load", lambda image: loaded.append(image.size) or original(image)
    )
    with pytest.raises(BadImage, match="claims 400 x 400 pixels, above bomb_pixels 1000"):
        decode_frames(out.getvalue(), max_pixels=1000, frames=2)
    assert (400, 400) not in loaded


def test_an_icon_that_holds_more_than_it_claims_is_refused():
    from msd.loader.transforms.base import BadImage
    from msd.loader.transforms.decode import decode_frames

    png = io.BytesIO()
    Image.new("RGB", (300, 300)).save(png, "PNG")
    content = png.getvalue()
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(content), 22) + content
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BadImage, match=r"pixels|decoded"):
            decode_frames(icon, max_pixels=1000, frames=1)


@pytest.mark.parametrize("path", ["../outside.png", "link.png", "up/outside.png"])
def test_a_path_in_a_row_does_not_lead_out_of_the_folder_that_is_named(tmp_path, path):
    from msd.loader.transforms.base import WrongType
    from msd.loader.transforms.decode import decode_frames

    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "outside.png")
    Image.new("RGB", (6, 4)).save(folder / "deep" / "inside.png")
    (folder / "link.png").symlink_to("../outside.png")
    (folder / "up").symlink_to("..")
    for value in (path, {"path": path}, str(tmp_path / "outside.png")):
        with pytest.raises(WrongType, match="leads out of the folder of images"):
            decode_frames(value, max_pixels=1000, frames=1, folder=str(folder))
    for value in ("deep/inside.png", "deep/../deep/inside.png", str(folder / "deep" / "inside.png")):
        (image,) = decode_frames(value, max_pixels=1000, frames=1, folder=str(folder))
        assert image.size == (6, 4)
