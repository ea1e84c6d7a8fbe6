"""A first look: formats by content, fields by name and content, everything else with a reason."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from PIL import Image

import msd
from msd.config import parse_config
from msd.errors import ConfigError, InputError, SourceError
from msd.look import assumptions, init, look, render_yaml

ROWS = [{"title": f"t{n}", "body": f"a longer text number {n} " * 4, "id": n} for n in range(5)]


def lines(rows: list[dict]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def png() -> bytes:
    encoded = io.BytesIO()
    Image.new("RGB", (30, 30), "red").save(encoded, "PNG")
    return encoded.getvalue()


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in (("a.png", png()), ("a.txt", b"a red square"), ("b.png", png()), ("b.txt", b"another")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for name in ("web", "packed", "table", "photos", "feathers", "prose"):
        (root / name).mkdir(parents=True)
    (root / "web" / "a.jsonl").write_bytes(lines(ROWS))
    (root / "web" / "b.jsonl.gz").write_bytes(gzip.compress(lines(ROWS)))
    (root / "packed" / "c.jsonl.zst").write_bytes(zstandard.compress(lines(ROWS)))
    pq.write_table(pa.Table.from_pylist(ROWS), root / "table" / "d.parquet")
    feather.write_feather(pa.Table.from_pylist(ROWS), root / "feathers" / "e.feather")
    write_tar(root / "photos" / "f.tar")
    (root / "prose" / "g.txt").write_text("Once upon a time")
    return root


def test_each_folder_and_format_is_a_source(folder: Path) -> None:
    found = {finding.name: finding for finding in look(folder).findings}
    assert {name: finding.format for name, finding in found.items()} == {
        "feathers": "arrow",
        "packed": "jsonl",
        "photos": "webdataset",
        "prose": "text",
        "table": "parquet",
        "web": "jsonl",
    }
    assert found["web"].path == (f"{folder}/web/*.jsonl", f"{folder}/web/*.jsonl.gz")
    assert [transform["kind"] for transform in found["photos"].transforms] == ["image", "tokenize"]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (ROWS, [("tokenize", "body")]),
        ([{"a": "short", "b": "much longer than the other"}], [("tokenize", "b")]),
        ([{"text": "x", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}], [("tokens", "input_ids")]),
        ([{"numbers": [5, 6, 7]}], [("tokens", "numbers")]),
        ([{"prompt": "2+2?", "answer": "4"}], [("tokenize", "prompt"), ("tokenize", "answer")]),
    ],
)
def test_the_field_is_guessed_by_name_then_by_length(
    rows: list[dict], wanted: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines(rows))
    (finding,) = look(tmp_path / "x.jsonl").findings
    assert [(transform["kind"], transform["field"]) for transform in finding.transforms] == wanted


def test_a_prompt_is_context_and_its_answer_is_learned(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines([{"instruction": "add", "output": "sum"}]))
    (finding,) = look(tmp_path / "x.jsonl").findings
    assert [transform.get("trained", True) for transform in finding.transforms] == [False, True]
    assert [transform["append_eos"] for transform in finding.transforms] == [False, True]


def test_conversations_are_rendered_and_the_assistants_turns_learned(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
    (tmp_path / "x.jsonl").write_bytes(lines([row]))
    (finding,) = look(tmp_path / "x.jsonl").findings
    assert finding.transforms == ({"kind": "chat", "tokenizer": "bytes", "field": "messages"},)


def test_parquet_images_of_hugging_face_are_seen(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"image": {"bytes": png(), "path": None}, "caption": "red"}])
    pq.write_table(table, tmp_path / "x.parquet")
    (finding,) = look(tmp_path).findings
    assert [(t["kind"], t["field"]) for t in finding.transforms] == [("image", "image"), ("tokenize", "caption")]


def test_what_is_no_source_is_listed_with_its_reason(folder: Path) -> None:
    (folder / "loose.png").write_bytes(png())
    (folder / "table.csv").write_text("a,b\n1,2\n")
    (folder / "nothing.jsonl").write_bytes(b"")
    (folder / "web" / "README.md").write_text("about")
    left_out = " | ".join(look(folder).left_out)
    for reason in ("loose.png is a loose image", "table.csv is a table", "nothing.jsonl is empty", "beside jsonl"):
        assert reason in left_out


def test_a_wrong_ending_does_not_hide_what_a_file_is(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.data")
    (finding,) = look(tmp_path / "rows.data").findings
    assert finding.format == "parquet"


def test_a_tokenizer_above_the_data_is_found_and_bytes_are_the_fallback(folder: Path) -> None:
    assert look(folder).tokenizer == "bytes"
    described = {"added_tokens": [{"content": "</s>"}], "model": {"vocab": {"a": 1}}}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    seen = look(folder / "web")
    assert seen.tokenizer == str(folder / "tokenizer.json")
    assert seen.findings[0].transforms[0]["append_eos"] is True


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [("nowhere", SourceError, "does not exist"), ("empty", SourceError, "holds no files")],
)
def test_nothing_to_see_is_said(path: str, error: type[InputError], says: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=says):
        look(tmp_path / path)


def test_data_without_any_text_is_refused_with_its_fields(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines([{"price": 3.5}]))
    with pytest.raises(SourceError, match="no field holds text or token ids; there are price"):
        look(tmp_path)


def test_the_yaml_and_the_value_are_the_same_configuration(folder: Path) -> None:
    text = render_yaml(look(folder), base=folder, sequence_length=512)
    assert yaml.safe_load(text)["sources"]["web"]["path"] == ["web/*.jsonl", "web/*.jsonl.gz"]
    assert parse_config(text, base=folder) == init(folder, sequence_length=512)


def test_a_folder_with_glob_characters_is_taken_literally(tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "x.jsonl").write_bytes(lines(ROWS))
    (finding,) = look(tmp_path / "a[1]").findings
    assert finding.path == (f"{tmp_path}/a[[]1]/*.jsonl",)
    assert finding.name == "a_1"


def test_a_saved_hugging_face_dataset_is_one_source(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(saved / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (saved / "dataset_info.json").write_text("{}")
    (finding,) = look(tmp_path).findings
    assert (finding.name, finding.format, finding.path) == ("saved", "hf", (str(saved),))
    assert finding.transforms[0]["field"] == "body"


def test_remote_data_is_looked_at_through_fsspec() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/look/web/a.jsonl", lines(ROWS))
    try:
        config = init("memory://look/web", sequence_length=64)
        (plan,) = msd.plan(config, steps=1)
    finally:
        files.rm("/look", recursive=True)
    assert plan.report.samples_by_source["web"] > 0


def test_rows_that_will_fail_are_allowed_for_with_a_comment_of_what_was_seen(tmp_path: Path) -> None:
    bad: list[dict] = [{"text": None}, {"other": 1}]
    (tmp_path / "x.jsonl").write_bytes(lines([{"text": "fine"}] * 17 + bad) + b"not json\n")
    seen = look(tmp_path / "x.jsonl")
    (finding,) = seen.findings
    assert finding.max_rate == 0.35
    text = render_yaml(seen, base=tmp_path, sequence_length=512)
    assert "# 3 of the 20 rows looked at fail (WrongType: field 'text' must be text, got NoneType" in text
    assert parse_config(text, base=tmp_path).sources["x"].on_error.max_rate == 0.35
    assert any("3 of the 20 rows looked at fail" in line for line in assumptions(seen))


def test_what_never_fails_gets_no_rate_and_what_always_fails_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "x.jsonl").write_bytes(lines([{"text": "fine"}]))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "y.jsonl").write_bytes(lines([{"messages": [{"role": "user", "content": None}]}]))
    seen = look(tmp_path)
    assert [(finding.name, finding.max_rate) for finding in seen.findings] == [("good", None)]
    assert "every row looked at fails: ValueError: messages[0].content must be text" in seen.left_out[0]
    assert "on_error" not in render_yaml(seen, base=tmp_path, sequence_length=512)


@pytest.mark.parametrize("where", [".", "*.jsonl"])
def test_a_file_that_is_left_out_is_in_no_pattern(tmp_path: Path, where: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([{"text": "fine"}]))
    (tmp_path / "torn.jsonl").touch()
    seen = look(tmp_path / where)
    assert "torn.jsonl is empty" in seen.left_out[0]
    [source] = parse_config(render_yaml(seen, base=tmp_path, sequence_length=512), base=tmp_path).sources.values()
    assert [Path(path).name for path in source.path] == ["a.jsonl", "b.jsonl"]


def test_conversations_say_by_which_template_they_are_rendered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]
    (tmp_path / "x.jsonl").write_bytes(lines([{"conversations": turns}]))
    text = render_yaml(look(tmp_path), base=tmp_path, sequence_length=512)
    assert text.count("conversations are rendered by the template chatml") == 1
    init(tmp_path)
    assert "only the assistant's turns are learned" in caplog.text


def test_conversations_in_which_nobody_answers_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "x.jsonl").write_bytes(lines([{"text": "fine"}]))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "x.jsonl").write_bytes(lines([{"messages": [{"role": "user", "content": "hello"}]}]))
    seen = look(tmp_path)
    assert [finding.name for finding in seen.findings] == ["good"]
    assert "no row looked at gives a sample: nothing in its conversations is learned" in seen.left_out[0]


def test_what_is_assumed_in_python_is_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "loose.png").write_bytes(png())
    init(folder)
    assert "msd.init: tokenizer bytes: no tokenizer.json lies in or above the data" in caplog.text
    assert "msd.init: left out: " in caplog.text
    assert {record.name for record in caplog.records} == {"msd"}


def test_an_archive_beside_other_data_is_named_after_its_file(tmp_path: Path) -> None:
    write_tar(tmp_path / "pics.tar")
    (tmp_path / "x.jsonl").write_bytes(lines(ROWS))
    names = {finding.format: finding.name for finding in look(tmp_path).findings}
    assert names["webdataset"] == "pics"
    write_tar(tmp_path / "pics2.tar")
    assert "pics" not in {finding.name for finding in look(tmp_path).findings}


def test_what_is_no_path_is_refused_with_how_to_use_it(tmp_path: Path) -> None:
    table = pd.DataFrame(ROWS)
    with pytest.raises(ConfigError, match=r'got DataFrame; for data in memory use msd.Config\(sources={"name": data}'):
        init(table)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got list with dict"):
        init(ROWS)  # type: ignore[arg-type]
    (tmp_path / "x.jsonl").write_bytes(lines(ROWS))
    assert [finding.name for finding in look(tmp_path.glob("*")).findings] == ["x"]  # type: ignore[arg-type]


def test_a_path_that_is_not_there_is_told_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'nowhere' does not exist"):
        look([tmp_path, "nowhere"], tokenizer="neither")


def test_what_init_finds_runs(folder: Path) -> None:
    config = init(folder, sequence_length=128)
    with msd.start(config) as engine, engine.client(rank=0) as client:
        batch = next(client)
    assert {source for source, _, _ in batch.sample_ids} == set(config.sources)
    assert batch.num_valid_tokens > 0
