import pytest

from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.index import index_sources
from msd.testing.conformance import check_source


def test_each_file_is_a_row_with_its_path_below_the_root(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.md").write_text("# Title")
    (tmp_path / "sub" / "a.txt").write_bytes(b"\xef\xbb\xbfmarked")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "picture.jpg").write_bytes(b"\xff\xd8\xff")
    rows = [
        {"text": "# Title", "path": "b.md"},
        {"text": "", "path": "empty.py"},
        {"text": "marked", "path": "sub/a.txt"},
    ]
    check_source({"format": "text", "path": str(tmp_path)}, expected=rows)


def test_a_glob_takes_what_it_names(tmp_path):
    (tmp_path / "a.html").write_text("<p>")
    (tmp_path / "b.txt").write_text("left out")
    check_source({"format": "text", "path": str(tmp_path / "*.html")}, expected=[{"text": "<p>", "path": "a.html"}])


def test_a_file_that_is_not_utf8_is_a_bad_row(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "b.txt").write_bytes("café".encode())
    check_source({"format": "text", "path": str(tmp_path)}, expected=[BadRow("any"), {"text": "café", "path": "b.txt"}])


def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"1 links that lead to no file \(.*a\.txt\)"):
        index_sources({"s": ReaderConfig(format="text", path=str(tmp_path))})
