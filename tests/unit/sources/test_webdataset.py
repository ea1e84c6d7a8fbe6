import gzip
import io
import json
import tarfile

import numpy as np
import pytest
import zstandard

from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
from msd.testing.conformance import check_source

BAD = BadRow("any")


def archive(members, format=tarfile.GNU_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if data is None:
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            else:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def pair(number, size=600):
    key = f"photos/{number:04d}"
    return [(f"{key}.JPG", bytes([number % 256]) * size), (f"{key}.txt", f"caption {number}é".encode())]


def expected(number, size=600):
    return {"__key__": f"photos/{number:04d}", "jpg": bytes([number % 256]) * size, "txt": f"caption {number}é"}


def config(path, block_bytes=8000):
    return ReaderConfig(path=str(path), format="webdataset", shuffle=ShuffleConfig(block_bytes=block_bytes))


MEMBERS = [member for number in range(40) for member in pair(number)]
ROWS = [expected(number) for number in range(40)]


@pytest.mark.parametrize("packed", ["tar", "tar.gz", "tgz", "tar.zst"])
def test_consecutive_members_with_one_key_are_a_row(tmp_path, packed):
    pack = {"tar": bytes, "tar.gz": gzip.compress, "tgz": gzip.compress, "tar.zst": zstandard.compress}[packed]
    (tmp_path / f"a.{packed}").write_bytes(pack(archive(MEMBERS)))
    blocks = check_source(config(tmp_path), expected=ROWS)
    assert blocks.num_blocks > 5
    assert blocks.nbytes_B.max() <= 8000
    assert len(np.unique(blocks.unit_B)) == (blocks.num_blocks if packed == "tar" else 1)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_are_read_in_every_dialect(tmp_path, format):
    folder = "/".join(["directory"] * (15 if format == tarfile.USTAR_FORMAT else 40))
    name = "ü" if format == tarfile.PAX_FORMAT else "u"
    members = [("plain.txt", b"first"), (f"{folder}/{name}.seg.png", b"\x89PNG"), (f"{folder}/{name}.txt", b"long")]
    (tmp_path / "a.tar").write_bytes(archive(members, format))
    rows = [{"__key__": "plain", "txt": "first"}, {"__key__": f"{folder}/{name}", "seg.png": b"\x89PNG", "txt": "long"}]
    for block_bytes in (1, 1 << 20):
        check_source(config(tmp_path, block_bytes), expected=rows)


def test_fields_are_decoded_by_their_last_extension(tmp_path):
    members = [
        ("a.json", b'{"x": [1]}'),
        ("a.cls", b"7\n"),
        ("a.caption", b"hi"),
        ("a.0.txt", b"0"),
        ("a.bin", b"\xff"),
    ]
    (tmp_path / "a.tar").write_bytes(archive(members))
    row = {"__key__": "a", "json": {"x": [1]}, "cls": 7, "caption": "hi", "0.txt": "0", "bin": b"\xff"}
    check_source(config(tmp_path), expected=[row])


def test_a_row_that_cannot_be_decoded_is_bad_and_the_others_are_not(tmp_path):
    members = [
        ("a.txt", b"\xff"), ("b.json", b"{"), ("c.cls", b"seven"), ("d.txt", b"1"), ("d.TXT", b"2"), ("e.txt", b"good"),
    ]  # fmt: skip
    (tmp_path / "a.tar").write_bytes(archive(members))
    settings = config(tmp_path)
    check_source(settings, expected=[BAD, BAD, BAD, BAD, {"__key__": "e", "txt": "good"}])
    rows = open_reader("s", settings, index_sources({"s": settings})["s"]).read_block(0, np.arange(4))
    assert "'a.txt'" in rows[0].reason
    assert "two members for field 'txt'" in rows[3].reason


def test_directories_hidden_members_and_marks_are_no_part_of_a_row(tmp_path):
    members = [
        ("photos", None), ("photos/.hidden.jpg", b"h"), ("__meta__", b"m"), ("README", b"r"), *pair(0),
        ("._0001.jpg", b"x"), *pair(1), ("photos/tail", b"t"),
    ]  # fmt: skip
    (tmp_path / "a.tar").write_bytes(archive(members))
    for block_bytes in (1, 1 << 20):
        check_source(config(tmp_path, block_bytes), expected=[expected(0), expected(1)])


def test_a_key_that_comes_back_later_is_another_row(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    check_source(config(tmp_path), expected=[{"__key__": k, "txt": v} for k, v in [("a", "1"), ("b", "2"), ("a", "3")]])


def test_an_archive_whose_writer_left_out_the_end_is_whole(tmp_path):
    data = archive(MEMBERS)
    end = data.rindex("caption 39é".encode()) + len("caption 39é".encode())
    (tmp_path / "a.tar").write_bytes(data[:end])
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(data[:end]))
    check_source(config(tmp_path / "a.tar"), expected=ROWS)
    check_source(config(tmp_path / "b.tar.gz"), expected=ROWS)


def test_an_empty_archive_has_no_rows(tmp_path):
    (tmp_path / "a.tar").write_bytes(gzip.compress(archive([])))
    assert check_source(config(tmp_path), expected=[]).num_rows == 0


@pytest.mark.parametrize("cut", [700, 513, 40_000])
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_a_truncated_archive_is_refused_with_the_byte_it_ends_at(tmp_path, cut, name):
    data = archive(MEMBERS)[:cut]
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(SourceError, match="truncated: it ends at byte") as raised:
        index_sources({"photos": config(tmp_path)})
    assert str(tmp_path / name) in str(raised.value)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes"),
        (json.dumps({"a": 1}).encode() * 100, "not a tar archive"),
        (archive(MEMBERS)[:5120] + b"rubbish!" * 200, "no tar header at byte 5120"),
        (archive([("README", b"r"), ("LICENSE", b"l")]), "no member is named key.extension"),
    ],
    ids=["empty", "json", "rubbish", "no-rows"],
)
def test_what_is_no_archive_of_rows_is_refused(tmp_path, data, found):
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(SourceError, match=found):
        index_sources({"photos": config(tmp_path)})


def test_the_first_tar_format_and_signed_checksums_are_read(tmp_path):
    header = bytearray(archive([("\xfc.txt", b"old")], tarfile.USTAR_FORMAT)[:512])
    header[0:6] = b"\xfc.txt\0"
    header[257:265] = bytes(8)
    header[148:156] = b" " * 8
    signed = sum(byte - 256 if byte > 127 else byte for byte in header)
    header[148:156] = b"%06o\0 " % signed
    (tmp_path / "a.tar").write_bytes(bytes(header) + b"old".ljust(512, b"\0") + bytes(1024))
    check_source(config(tmp_path), expected=[{"__key__": "\\xfc", "txt": "old"}])
