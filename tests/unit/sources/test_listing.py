import json
import os

import pytest

from msd.errors import SourceError
from msd.sources.config import ReaderConfig
from msd.sources.found import expand_braces
from msd.sources.index import index_sources, list_shards
from msd.sources.open import resolve_format
from msd.testing.conformance import check_source


def put(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n")


def names(path, format="jsonl", **settings):
    config = ReaderConfig(format=format, path=path if isinstance(path, list) else str(path), **settings)
    return [shard.name for shard in list_shards("web", config)]


def refused(path, format="jsonl"):
    with pytest.raises(SourceError) as raised:
        names(path, format)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_directory_gives_all_files_of_the_format_below_it(tmp_path):
    put(tmp_path, "b.jsonl", "a.jsonl.gz", "deep/er/c.ndjson", "README.md", ".hidden.jsonl", ".git/d.jsonl", "x.json")
    assert names(tmp_path) == ["a.jsonl.gz", "b.jsonl", "deep/er/c.ndjson"]


def test_names_do_not_depend_on_where_the_tree_lies(tmp_path):
    for place in ("here", "some/where/else"):
        put(tmp_path / place, "web/a.jsonl", "web/2/b.jsonl", "code/c.jsonl")
    for pick in (
        lambda root: root,
        lambda root: root / "**" / "*.jsonl",
        lambda root: [str(root / "code"), str(root / "web")],
        lambda root: [str(root / "code" / "*.jsonl"), str(root / "web" / "a.jsonl")],
    ):
        here, there = names(pick(tmp_path / "here")), names(pick(tmp_path / "some/where/else"))
        assert here == there
        assert len(here) > 1
        assert not any(name.startswith(("/", "..")) for name in here)


def test_names_are_relative_to_the_fixed_part_of_a_glob(tmp_path):
    put(tmp_path, "web/1/a.jsonl", "web/2/a.jsonl", "web/b.jsonl")
    assert names(tmp_path / "web" / "*" / "*.jsonl") == ["1/a.jsonl", "2/a.jsonl"]
    assert names(tmp_path / "web" / "**" / "a.jsonl") == ["1/a.jsonl", "2/a.jsonl"]
    assert names(tmp_path / "web" / "b.jsonl") == ["b.jsonl"]


def test_a_file_that_several_items_lead_to_is_taken_once(tmp_path):
    put(tmp_path, "a.jsonl", "b.jsonl")
    items = [str(tmp_path / "*.jsonl"), str(tmp_path / "b.jsonl"), str(tmp_path), f"file://{tmp_path}/a.jsonl"]
    assert names(items) == ["a.jsonl", "b.jsonl"]


def test_braces_expand_as_shells_do(tmp_path):
    assert expand_braces("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{a,b}/{1..2}") == ["a/1", "a/2", "b/1", "b/2"]
    put(tmp_path, "x-000.jsonl", "x-001.jsonl", "x-002.jsonl", "y.jsonl")
    assert names(tmp_path / "x-{000..001}.jsonl") == ["x-000.jsonl", "x-001.jsonl"]
    assert "x-003.jsonl" in refused(tmp_path / "x-{002..003}.jsonl")


def test_a_name_with_wildcard_characters_that_exists_is_that_file(tmp_path):
    put(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]


def test_links_are_followed_and_loops_are_not(tmp_path):
    put(tmp_path, "blobs/x", "real/a.jsonl")
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "b.jsonl").symlink_to(tmp_path / "blobs" / "x")
    (tmp_path / "view" / "real").symlink_to(tmp_path / "real")
    (tmp_path / "view" / "loop").symlink_to(tmp_path / "view")
    assert names(tmp_path / "view") == ["b.jsonl", "real/a.jsonl"]


def test_a_path_that_leads_nowhere_says_what_is_nearby(tmp_path):
    put(tmp_path, "web/a.jsonl.gz", "web/b.jsonl.gz", "web/README.md")
    assert "did you mean" in refused(tmp_path / "wbe")
    assert "2 .jsonl.gz, 1 .md" in refused(tmp_path / "web" / "*.parquet")
    found = refused(tmp_path / "web", "parquet")
    assert "looked for .parquet .pq .parq" in found
    assert "2 .jsonl.gz, 1 .md" in found
    assert f"{tmp_path}/web holds 2 .jsonl.gz, 1 .md" in refused(tmp_path / "web" / "none" / "*.jsonl")
    (tmp_path / "empty").mkdir()
    assert "matches no file" in refused(tmp_path / "empty")
    assert "directories" in refused(tmp_path / "*")


def test_two_files_that_would_be_one_shard_are_refused(tmp_path):
    import fsspec

    put(tmp_path, "a.jsonl")
    memory = fsspec.filesystem("memory")
    memory.pipe("/clash/a.jsonl", b'{"text": "x"}\n')
    assert "would both be shard 'a.jsonl'" in refused([str(tmp_path / "a.jsonl"), "memory://clash/a.jsonl"])


@pytest.mark.parametrize(
    ("files", "format"),
    [
        (["a.parquet", "README.md"], "parquet"),
        (["a.jsonl", "b.jsonl.zst"], "jsonl"),
        (["a.tar", "b.tgz"], "webdataset"),
        (["a.feather"], "arrow"),
        (["a.txt", "b.py"], "text"),
    ],
)
def test_auto_looks_at_names(tmp_path, files, format):
    put(tmp_path, *files)
    assert resolve_format("s", ReaderConfig(path=str(tmp_path))) == format


def test_auto_takes_a_named_file_of_a_wider_ending(tmp_path):
    put(tmp_path, "c4.json.gz", "page.html")
    assert resolve_format("s", ReaderConfig(path=str(tmp_path / "*.json.gz"))) == "jsonl"
    assert resolve_format("s", ReaderConfig(path=str(tmp_path / "*.html"))) == "text"


def test_auto_refuses_several_formats_and_none(tmp_path):
    put(tmp_path, "a.parquet", "b.jsonl")
    with pytest.raises(
        SourceError, match=r"several formats: jsonl \(b.jsonl\), parquet \(a.parquet\); make one source"
    ):
        resolve_format("s", ReaderConfig(path=str(tmp_path)))
    put(tmp_path / "odd", "a.bin")
    with pytest.raises(SourceError, match=r"cannot tell the format.*1 \.bin"):
        resolve_format("s", ReaderConfig(path=str(tmp_path / "odd")))


def test_what_is_given_from_python_has_its_format():
    assert resolve_format("s", ReaderConfig(format="memory", rows=[])) == "memory"
    assert resolve_format("s", ReaderConfig(format="some.package:Class")) == "class"


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    put(tmp_path, "a.jsonl")

    def forbidden(self, path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("msd.sources.files.Opener.open", forbidden)
    with pytest.raises(SourceError, match=r"a\.jsonl: permission denied; make it readable"):
        index_sources({"s": ReaderConfig(path=str(tmp_path))})


def test_links_in_circles_and_links_that_lead_nowhere_are_left_out_and_said(tmp_path, caplog):
    put(tmp_path, "web/a.jsonl", "web/deep/b.jsonl")
    (tmp_path / "web" / "self").symlink_to("self")
    (tmp_path / "web" / "ping").symlink_to("pong")
    (tmp_path / "web" / "pong").symlink_to("ping")
    for number in range(4):
        (tmp_path / "web" / "deep" / f"up{number}").symlink_to(tmp_path / "web")
    os.mkfifo(tmp_path / "web" / "pipe.jsonl")
    assert names(tmp_path / "web") == ["a.jsonl", "deep/b.jsonl"]
    assert not caplog.records
    (tmp_path / "web" / "gone.jsonl").symlink_to("nowhere")
    for path in (tmp_path / "web", tmp_path / "web" / "**" / "*.jsonl"):
        caplog.clear()
        assert names(path) == ["a.jsonl", "deep/b.jsonl"]
        assert "1 links lead to no file and are left out" in caplog.text
        assert "gone.jsonl" in caplog.text


def test_what_is_no_regular_file_is_refused_as_such(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    assert "/dev/null is not a regular file but a pipe, socket or device" in refused("/dev/null")
    assert "is not a regular file but a pipe" in refused(tmp_path / "pipe.jsonl")
    assert "is not a regular file but a pipe" in refused(tmp_path / "p*.jsonl")
    assert "is not a regular file but a link to self.jsonl" in refused(tmp_path / "self.jsonl")
    assert "a link to nowhere, which does not exist" in refused(tmp_path / "gone.jsonl")
    assert "did you mean" not in refused(tmp_path / "self.jsonl")


@pytest.mark.parametrize("name", ["::c.jsonl", "part::1.jsonl", "zip::x.jsonl", "a b.jsonl", "%41.jsonl", "#h.jsonl"])
def test_a_local_name_may_hold_what_urls_hold(tmp_path, monkeypatch, name):
    put(tmp_path, f"d/{name}")
    monkeypatch.chdir(tmp_path / "d")
    for path in (tmp_path / "d", tmp_path / "d" / name, name, f"file://{tmp_path}/d/{name}"):
        assert names(path) == [name]
        check_source({"format": "jsonl", "path": str(path)}, expected=[{"text": f"d/{name}"}])


def test_names_that_are_not_utf8_are_indexed_split_and_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / os.fsdecode(b"d\xfe")
    put(folder, os.fsdecode(b"\xff.jsonl"), os.fsdecode(b"\xfe.jsonl"), "\\udcff.jsonl")
    settings = ReaderConfig(path=str(folder), split=(0.0, 0.999))
    seen = []
    first = index_sources({"s": settings}, on_progress=seen.append)["s"]
    again = index_sources({"s": settings}, on_progress=seen.append)["s"]
    assert first.num_rows_B.tolist() == [1, 1, 1]
    assert first.digest == again.digest
    assert [report.is_cached for report in seen] == [False] * 3 + [True] * 3
    check_source(settings)
    (folder / os.fsdecode(b"\xff.txt")).write_text("x")
    check_source({"format": "text", "path": str(folder)})


def test_two_stars_match_as_in_a_shell(tmp_path):
    put(tmp_path, "a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/z/d.jsonl", ".git/e.jsonl", "[x]/f.jsonl")
    assert names(tmp_path / "**" / "*.jsonl") == ["[x]/f.jsonl", "a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/z/d.jsonl"]
    assert names(tmp_path / "x" / "**") == ["b.jsonl", "y/c.jsonl", "y/z/d.jsonl"]
    assert names(tmp_path / "x" / "**" / "y" / "**" / "*.jsonl") == ["y/c.jsonl", "y/z/d.jsonl"]
    assert names(tmp_path / "?" / "**" / "c.jsonl") == ["x/y/c.jsonl"]
