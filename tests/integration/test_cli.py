"""The commands over a small copy of the demo corpus: what they print is what the library says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import msd
from msd.cli.main import run


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """Run a command with --json and return what it says; nothing else may stand on standard output."""
    assert run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def config(tiny_corpus: Path) -> Path:
    return tiny_corpus / "corpus.yaml"


def test_a_second_index_comes_from_the_cache(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers ML-4."""
    first, second = told(capsys, "index", config), told(capsys, "index", config)
    assert [source["from_cache"] for source in first["sources"]] == [False] * 5
    assert [source["from_cache"] for source in second["sources"]] == [True] * 5
    for before, after in zip(first["sources"], second["sources"], strict=True):
        assert before == after | {"from_cache": False}


def test_index_says_what_a_late_entry_costs_and_seekable_removes_it(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_blocks = "sources.descriptions.shuffle={block_bytes: 8KiB}"
    first = told(capsys, "index", config, small_blocks, "--seekable", "--out", tmp_path / "framed")
    stream = {source["source"]: source for source in first["sources"]}["descriptions"]
    assert stream["worst_entry_bytes"] > 0
    assert stream["units"] < stream["blocks"]
    assert any("entered late" in remark for remark in stream["remarks"])
    rewritten = first["seekable"]["descriptions"]
    path = f"sources.descriptions.path={tmp_path}/framed/descriptions/*.jsonl.zst"
    framed = {source["source"]: source for source in told(capsys, "index", config, path)["sources"]}["descriptions"]
    assert len(rewritten) == framed["shards"]
    assert framed["worst_entry_bytes"] == 0
    assert framed["rows"] == stream["rows"]


def test_plan_adds_up_what_the_library_plans(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers MS-11."""
    outlook = told(capsys, "plan", config, "--steps", 6)
    plans = list(msd.plan(msd.load_config(config), steps=6))
    for name, source in outlook["sources"].items():
        assert source["tokens"] == sum(plan.report.tokens_by_source.get(name, 0) for plan in plans)
    assert outlook["fill"] == pytest.approx(sum(plan.report.fill for plan in plans) / 6)
    assert sum(source["target"] for source in outlook["sources"].values()) == pytest.approx(1)
    assert sum(source["token_share"] for source in outlook["sources"].values()) == pytest.approx(1)
    assert not outlook["is_over"]


def test_plan_tells_how_even_encoding_is_where_images_are_encoded_apart_from_their_rows(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outlook = told(capsys, "plan", config, "strategy=vlm_hybrid", "--steps", 3)
    reports = [plan.report.encoder for plan in msd.plan(msd.load_config(config, ["strategy=vlm_hybrid"]), steps=3)]
    for name in ("imbalance", "imbalance_floor", "row_imbalance", "moved"):
        assert outlook[f"encoder_{name}"] == pytest.approx(sum(getattr(report, name) for report in reports) / 3)
    assert "encoder_imbalance" not in told(capsys, "plan", config, "--steps", 1)
    assert run(["plan", str(config), "strategy=vlm_hybrid", "--steps", "1"]) == 0
    assert "imbalance of ranks that encode images" in capsys.readouterr().out


def test_plan_for_another_mesh_has_its_ranks_and_the_same_samples(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = told(capsys, "plan", config, "--steps", 3, "--mesh", "dp=1")
    wide = told(capsys, "plan", config, "--steps", 3, "--mesh", "dp=8", "-s", "num_microbatches=1", "--explain", "1")
    assert narrow["imbalance"] == 0.0
    assert wide["imbalance"] > 0.0
    assert {name: s["tokens"] for name, s in narrow["sources"].items()} == {
        name: s["tokens"] for name, s in wide["sources"].items()
    }
    assert "step 1" in wide["explanation"]
    assert "dp=8" in wide["explanation"]


def test_plan_follows_a_sample_from_its_file_to_the_slices_of_ranks(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh = ("--mesh", "dp=2,cp=2", "--steps", 3)
    plan = next(msd.plan(msd.load_config(config), steps=1, mesh={"dp": 2, "cp": 2}))
    source, ordinal, part = plan.sample_id(0)
    found = told(capsys, "plan", config, *mesh, "--explain", f"{source}:{ordinal}.{part}")
    (lineage,) = found["lineage"]
    assert (lineage["step"], lineage["sample"]) == (0, [source, ordinal, part])
    with msd.start(msd.load_config(config), runtime="local") as engine:
        place = engine.orders[source].place_of(ordinal)
    assert f"{place.shard} row {place.row}" in lineage["states"]["source"]
    assert "ranks" in lineage["states"]["distribute"]
    assert [name for name in lineage["states"] if name.startswith("slice")] == ["slice 0", "slice 1"]
    assert run(["plan", str(config), "--explain", f"{source}:{ordinal}"]) == 0
    assert f"{source}:{ordinal}.{part} in step 0" in capsys.readouterr().out


def test_plan_says_why_a_sample_is_in_no_step(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(sample: str, *settings: str) -> str:
        found = told(capsys, "plan", config, *settings, "--steps", 1, "--explain", sample)
        assert found["lineage"] == []
        return next(note for note in found["notes"] if note.startswith(sample))

    keep_none = "sources.code.transforms=[{kind: filter, field: text, min_length: 1000000}]"
    broken = "sources.docs.transforms=[{kind: tokenize, tokenizer: bytes, field: nosuch}]"
    assert "is in none of 1 steps: they came to the first" in said("code:90000")
    # Which rows are long is not for a test to know: the corpus is made from what is installed.
    assert any("its row gives 2 samples" in said(f"descriptions:{row}.7") for row in range(20))
    assert "its row gives 0 samples: filtered" in said("code:3", "mixture.weights={docs: 1}", keep_none)
    assert "its row gives 0 samples: failed (" in said("docs:3", "mixture.weights={code: 1}", broken)
    assert "docs has " in said("docs:90000", "mixture.weights={docs: 1}", "sources.docs.max_epochs=1")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("nosuch:3", "there is no source 'nosuch' (sources: "),
        ("web", "'web' is no sample; write SOURCE:ORDINAL"),
        ("-3", "is no sample"),
    ],
)
def test_plan_refuses_to_explain_what_is_neither_step_nor_sample(
    config: Path, capsys: pytest.CaptureFixture[str], question: str, message: str
) -> None:
    assert run(["plan", str(config), f"--explain={question}"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_plan_foresees_where_sources_repeat_and_warns(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "plan", config, "--steps", 4, "--until", 2000)
    sources = found["forecast"]["sources"]
    assert found["forecast"]["num_steps"] == 2000
    assert sum(source["tokens"] for source in sources.values()) == pytest.approx(
        2000 * sum(source["tokens"] for source in found["sources"].values()) / 4, rel=0.01
    )
    often = [name for name, source in sources.items() if source["epochs"] > 4]
    warned = [note for note in found["notes"] if "passed over" in note]
    assert often
    assert all(any(f"source {name!r}" in note for note in warned) for name in often)
    assert run(["plan", str(config), "--steps", "1", "--until", "2000"]) == 0
    assert "expected by step 2,000" in capsys.readouterr().out
    assert "forecast" not in told(capsys, "plan", config, "--steps", 1)


def test_plan_and_index_warn_of_windows_that_cannot_mix(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers WD-3."""
    narrow = "sources.code.shuffle={block_bytes: 16KiB, window: 1}"
    assert any("'code'" in note and "stay neighbours" in note for note in told(capsys, "plan", config, narrow)["notes"])
    facts = {fact["source"]: fact for fact in told(capsys, "index", config, narrow)["sources"]}
    assert any("stay neighbours" in remark for remark in facts["code"]["remarks"])
    assert not any("stay neighbours" in note for note in told(capsys, "plan", config, "--steps", 1)["notes"])


def test_plan_simulates_as_the_library_does(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--trainer", "flops_per_s=4e9", "--trainer", "sync=microbatch"]
    found = told(capsys, "plan", config, "--steps", 2, "--simulate", *asked)["simulation"]
    simulation = msd.simulate(msd.load_config(config), {"flops_per_s": 4e9, "sync": "microbatch"}, steps=2)
    assert found == json.loads(json.dumps(simulation.as_dict()))
    assert run(["plan", str(config), "--steps", "1", *asked]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("dealt", "planned", "4e+09", "once a microbatch"))
    assert run(["plan", str(config), "--trainer", "sync"]) == 2
    assert "must look like encoder=every_rank" in capsys.readouterr().err


def test_a_mesh_names_each_axis_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(config), "--mesh", "dp=2,dp=4"]) == 2
    assert "dp stands twice; name each axis once" in capsys.readouterr().err


def test_plan_says_where_finite_data_ends(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only_docs = "mixture.weights={docs: 1}"
    outlook = told(capsys, "plan", config, only_docs, "sources.docs.max_epochs=1", "--steps", 200)
    docs = outlook["sources"]["docs"]
    assert outlook["is_over"]
    assert docs["total_rows"] == docs["rows_per_epoch"]
    assert docs["ends_at_step"] >= outlook["num_steps"]
    assert 0.5 < docs["epochs"] <= 1.0
    assert any("source 'docs' ended after" in note for note in outlook["notes"])


def test_a_run_without_a_step_says_why(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["mixture.weights={docs: 1}", "sources.docs.max_epochs=0.05"]
    outlook = told(capsys, "plan", config, *few)
    assert outlook["num_steps"] == 0
    assert any("batch.last: pad delivers them" in note for note in outlook["notes"])
    assert run(["preview", str(config), *few]) == 2
    said = capsys.readouterr().err
    assert "there is no step 0: the run ends at once (source 'docs' ended after" in said
    assert "batch.last: pad delivers them" in said


def test_plan_counts_rows_that_give_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_long = "sources.docstrings.transforms.0={kind: filter, field: text, min_length: 400}"
    tokens = "sources.docstrings.transforms=[{}, {kind: tokenize, tokenizer: bytes, field: text}]"
    outlook = told(capsys, "plan", config, tokens, keep_long, "--steps", 2)
    docstrings = outlook["sources"]["docstrings"]
    assert docstrings["undelivered"]["filtered"] > 0
    assert docstrings["undelivered"]["filtered"] < docstrings["rows_used"]
    assert outlook["sources"]["code"]["undelivered"] == {}


def test_no_table_is_wider_than_80_columns_or_breaks_a_number(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in (["plan", str(config), "--steps", "2"], ["index", str(config)], ["validate", str(config)]):
        assert run(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        cells = [line.split() for line in lines if line.startswith("descriptions")]
        assert len(cells) == 2, "a table a source, each in one line"


def test_plan_warns_of_mixed_tokenizers(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "sources.docs.transforms.0.tokenizer=bytes"
    assert any("different tokenizers" in note for note in told(capsys, "plan", config, other, "--steps", 1)["notes"])
    assert run(["plan", str(config), other, "--steps", "1"]) == 0
    assert "different tokenizers" in capsys.readouterr().err


def test_tables_name_every_source(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["plan", str(config), "--steps", "2"], ["index", str(config)], ["validate", str(config)]):
        assert run(command) == 0
        out = capsys.readouterr().out
        for name in ("code", "docstrings", "docs", "photos"):
            assert name in out


def test_preview_shows_the_batch_that_the_rank_gets(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "preview", config, "--step", 1, "--rank", 1, "--rows", 2)
    with msd.start(msd.load_config(config)) as engine, engine.client(rank=1) as client:
        batch = [next(client), next(client)][1]
    documents = [document for row in shown["rows"] for document in row]
    assert [tuple(document["id"]) for document in documents] == [tuple(found) for found in batch.sample_ids]
    assert sum(document["trained"] for document in documents) == batch.num_valid_tokens
    assert sum(d["tokens"] + d["padding"] for d in documents) == sum(len(row.input_ids) for row in batch.microbatches)
    assert any("<|endoftext|>" in document["text"] for document in documents)


def test_preview_saves_the_images_of_the_row(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "preview", config, "--images", tmp_path / "pictures", "--rows", 2)
    with_images = [d for row in shown["rows"] for d in row if d["image_tokens"]]
    assert len(shown["images"]) == len(with_images) > 0
    for path, document in zip(shown["images"], with_images, strict=True):
        with Image.open(path) as image:
            assert image.width * image.height == document["image_tokens"] * 28 * 28
            assert "photograph" in document["text"]


def test_preview_colours_documents_and_draws_images_on_a_terminal(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run(["preview", str(config)]) == 0
    out = capsys.readouterr().out
    assert "▀" in out
    assert "\x1b[38;2;" in out
    assert "sequence 0" in out


def test_preview_of_a_step_after_the_end_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finite = ["mixture.weights={docs: 1}", "sources.docs.max_epochs=1"]
    assert run(["preview", str(config), *finite, "--step", "5000"]) == 2
    assert "there is no step 5000: the run ends with step" in capsys.readouterr().err
    assert run(["preview", str(config), "--rank", "2"]) == 2
    assert "rank 2 is outside the mesh of 2 ranks" in capsys.readouterr().err


def test_what_init_writes_validates_and_runs(
    tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    seen = told(capsys, "init", tiny_corpus, "--out", out, "--seq", 512)
    assert set(seen["sources"]) == {"code", "descriptions", "docs", "docstrings", "frames", "photos"}
    assert run(["validate", str(out)]) == 0
    with msd.start(msd.load_config(out)) as engine, engine.client(rank=0) as client:
        assert next(client).num_valid_tokens > 0


def test_init_leaves_an_existing_file_alone(
    tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("precious")
    assert run(["init", str(tiny_corpus / "docs"), "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert run(["init", str(tiny_corpus / "docs"), "--out", str(out), "--force"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    assert set(msd.load_config(out).sources) == {"docs"}


def test_what_init_writes_for_data_with_bad_rows_validates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "a.jsonl", good=180, bad=20)
    out = tmp_path / "mine.yaml"
    rows = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(rows[start] for begin in range(10) for start in range(begin, 200, 10)))
    assert run(["init", str(tmp_path / "a.jsonl"), "--out", str(out)]) == 0
    assert "rows looked at fail" in " ".join(capsys.readouterr().err.split())
    assert run(["validate", str(out)]) == 0
    assert run(["validate", str(out), "sources.a.on_error.max_rate=0.01"]) == 2


def test_init_names_a_missing_path_before_an_existing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("precious")
    assert run(["init", str(tmp_path / "nothere"), "--out", str(out)]) == 2
    assert "nothere' does not exist" in capsys.readouterr().err


def test_validate_warns_of_different_tokenizers_and_of_ids_outside_the_vocabulary(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "sources.docs.transforms.0.tokenizer=bytes"
    assert any("different tokenizers" in remark for remark in told(capsys, "validate", config, other)["remarks"])
    large = "sources.photos.transforms.0.image_token=5000"
    remarks = told(capsys, "validate", config, large)["remarks"]
    assert any("token id 5000 (the image placeholder)" in remark and "5001 rows" in remark for remark in remarks)


def test_samples_over_a_limit_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"ids": [1] * (4 + 8 * (n % 2))}) + "\n" for n in range(40)))
    path = tmp_path / "a.yaml"
    path.write_text(
        "sources: {a: {path: a.jsonl, transforms: [{kind: tokens, field: ids}]}}\n"
        "batch: {sequence_length: 16, global_batch_size: 4, limits: {attention: 100}}\n"
        "mesh: {dp: 1}\nnum_microbatches: 1\n"
    )
    assert run(["validate", str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "sources.a: 20 of the 40 samples of 40 rows fit no sequence (144 attention > batch.limits.attention 100)"
        in said
    )
    drop = "batch.oversize=drop"
    assert any(
        "20 of 40 samples would be left out" in remark for remark in told(capsys, "validate", path, drop)["remarks"]
    )
    assert run(["validate", str(path), drop, "batch.limits.attention=10"]) == 2
    monkeypatch.setattr("msd.cli.plan._NOTES_SHOWN", 1)
    assert run(["plan", str(path), drop, "--steps", "30"]) == 0
    assert "more notes; --json tells all" in " ".join(capsys.readouterr().err.split())


def write_rows(path: Path, *, good: int, bad: int = 0) -> None:
    rows = [{"text": f"row {number} of some words"} for number in range(good)] + [{"text": None}] * bad
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def written_config(folder: Path, rates: dict[str, float]) -> Path:
    sources = {
        name: {
            "path": f"{name}.jsonl",
            "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}],
            "on_error": {"max_rate": rate},
        }
        for name, rate in rates.items()
    }
    path = folder / "run.yaml"
    batch = {"sequence_length": 64, "global_batch_size": 8}
    path.write_text(json.dumps({"sources": sources, "batch": batch, "mesh": {"dp": 1}, "num_microbatches": 1}))
    return path


@pytest.mark.parametrize(
    ("good", "bad", "rate", "says"),
    [
        (61, 3, 0.03, "sources.a: 3 of 64 rows failed (4.7 %), max_rate allows 3 %; the first, a.jsonl row 6"),
        (61, 3, 0.05, None),
        (100, 0, 0.0, None),
        (0, 400, 0.99, "sources.a: none of the first 64 rows gave a sample (64 failed); the first, a.jsonl row"),
    ],
)
def test_validate_judges_a_rate_as_the_run_will(
    good: int, bad: int, rate: float, says: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "a.jsonl", good=good, bad=bad)
    assert run(["validate", str(written_config(tmp_path, {"a": rate}))]) == (2 if says else 0)
    err = capsys.readouterr().err
    assert says is None or says in err


def test_validate_takes_the_rate_of_a_long_source_over_a_hundred_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "a.jsonl", good=1980, bad=20)
    config = written_config(tmp_path, {"a": 0.0})
    failed = told(capsys, "validate", config, "sources.a.on_error.max_rate=1")["sources"][0]["outcomes"]["failed"]
    assert failed == 1
    assert run(["validate", str(config)]) == 2
    assert "1 of the first 64 rows failed (1 % of the 100 that a rate is taken over), max_rate allows 0 %" in (
        capsys.readouterr().err
    )
    assert run(["validate", str(config), "sources.a.on_error.policy=raise"]) == 2
    assert "1 of the first 64 rows failed, and on_error.policy is raise; the first, a.jsonl" in capsys.readouterr().err


def test_validate_tells_every_fault_and_counts_them_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, bad in (("fine", 0), ("rates", 9), ("barren", 0), ("wrong", 0)):
        write_rows(tmp_path / f"{name}.jsonl", good=40, bad=bad)
    config = written_config(tmp_path, dict.fromkeys(("fine", "rates", "gone", "barren", "wrong"), 0.01))
    faults = [
        "sources.barren.transforms=[{kind: filter, field: text, min_length: 999}]",
        "sources.wrong.transforms=[{kind: 'msd_no_such_module:f'}]",
        "sources.wrong.path=nowhere.jsonl",
    ]
    assert run(["validate", str(config), *faults, "--json"]) == 2
    out, err = capsys.readouterr()
    problems = json.loads(out)["problems"]
    assert [problem.partition(":")[0].partition(".transforms")[0] for problem in problems] == [
        "sources.rates", "sources.gone", "sources.barren", "sources.wrong",
    ]  # fmt: skip
    assert "cannot import 'msd_no_such_module'" in problems[3]
    assert "nowhere.jsonl does not exist" in problems[3]
    assert err == f"error: {problems[0]}; also at fault: gone, barren, wrong\n"
    assert run(["validate", str(config), *faults]) == 2
    out, err = capsys.readouterr()
    assert out.count("at fault") == 4
    assert err.count("\nerror: ") == 1
    assert all(problem in err for problem in problems)


def test_dotted_paths_are_found_beside_the_file_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_rows(tmp_path / "configs" / "a.jsonl", good=200)
    config = written_config(tmp_path / "configs", {"a": 0.01})
    for folder in ("configs", "elsewhere"):
        body = "def tf(sample):\n    return {**sample, 'text': sample['text'][:3]}\n"
        (tmp_path / folder / f"msd_found_in_{folder}.py").write_text(body)
    monkeypatch.chdir(tmp_path / "elsewhere")
    both = "['msd_found_in_configs:tf', 'msd_found_in_elsewhere:tf', {kind: tokenize, tokenizer: bytes}]"
    told_of = told(capsys, "validate", config, f"sources.a.transforms={both}")["sources"][0]
    assert told_of["tokens"] == 3 * told_of["samples"] == 3 * 64


def test_demo_shows_shares_near_the_weights_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = os.environ["MSD_CACHE"]
    shown = told(capsys, "demo", "--scale", 0.05, "--steps", 8)
    assert list(tmp_path.iterdir()) == []
    assert os.environ["MSD_CACHE"] == cache
    assert shown["streamed"]["ranks"] == 2
    assert shown["streamed"]["images"] > 0
    for name, source in shown["plan"]["sources"].items():
        assert source["token_share"] == pytest.approx(source["target"], abs=0.05), name
        assert shown["streamed"]["tokens_by_source"][name] == source["tokens"]


def test_demo_prints_tables_and_a_row_and_keeps_its_corpus_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--scale", "0.03", "--steps", "2", "--keep", str(tmp_path / "kept")]) == 0
    out = capsys.readouterr().out
    assert "streamed to 2 ranks" in out
    assert "step 0 · rank 0" in out
    assert (tmp_path / "kept" / "corpus.yaml").is_file()


@pytest.mark.parametrize("name", ["smoke", "text_mix", "multimodal", "code_concat", "long_context", "evaluation"])
def test_every_configuration_of_the_repository_runs_over_the_corpus(
    name: str, repository: Path, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo-corpus").symlink_to(tiny_corpus)
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / f"{name}.yaml"
    path.write_text((repository / "configs" / f"{name}.yaml").read_text())
    assert told(capsys, "validate", path)["sources"]
    assert told(capsys, "plan", path, "--steps", 2)["num_steps"] >= 1


def test_a_closed_pipe_ends_quietly(config: Path) -> None:
    code = "import sys; from msd.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "plan", str(config), "--steps", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert errors == ""


def test_profile_and_partition_size_a_run_and_say_what_is_short(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    assert run(["profile", str(config), "--seconds", "2", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = set(found["sources"])
    assert json.loads(out.read_text())["sources"].keys() == names
    assert all(one["prepare_s"] > 0 for one in found["sources"].values())
    sized = ["partition", str(config), "--cpus", "2", "--memory", "4GiB", "--json"]
    assert run([*sized, "--rate", "1"]) == 0
    little = json.loads(capsys.readouterr().out)
    assert {one["source"] for one in little["sources"]} == names
    assert all("samples/s x" in one["why"] for one in little["sources"])
    assert run([*sized, "--rate", "1e7", "--profile", str(out)]) == 1
    much = json.loads(capsys.readouterr().out)
    assert not much["is_met"]
    assert much["shortfalls"][0]["what"] == "cores"
    assert 1 < much["rate"] < 1e7
    assert sum(one["cores"] for one in much["hosts"]) <= 2 + 1e-6
    assert much["sustained"]["this"] >= 0.95 * max(much["sustained"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["partition", "CONFIG", "--cpus", "0"], "--cpus must be above 0 cores"),
        (["partition", "CONFIG", "--rate", "0"], "above 0 samples/s"),
        (["partition", "CONFIG", "--memory", "1MiB"], "not enough for 2 loader hosts"),
        (["partition", "CONFIG", "--profile", "nowhere.json"], "no profile at 'nowhere.json'"),
        (["profile"], "name a configuration"),
        (["profile", "CONFIG", "--source", "wob"], "no source 'wob'"),
        (["profile", "--training", "nowhere.csv"], "cannot be read as a table"),
        (["profile", "--training", "table.txt"], "none of .csv"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run([str(config) if one == "CONFIG" else one for one in arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_training_cost_is_printed_as_a_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = [[100 * n, 7 * n * n] for n in range(1, 20)]
    table = tmp_path / "timed.csv"
    seconds = [sum(2e-6 * s + 3e-10 * s * s for s in one) for one in lengths]
    lines = [f"{' '.join(map(str, one))},{took}" for one, took in zip(lengths, seconds, strict=True)]
    table.write_text("\n".join(["lengths,seconds", *lines]))
    assert run(["profile", "--training", str(table)]) == 0
    cost = yaml.safe_load(capsys.readouterr().out)["cost"]["backbone"]
    assert cost["kind"] == "fitted"
    assert (cost["linear"], cost["quadratic"], cost["constant"]) == pytest.approx((2e-6, 3e-10, 0.0), rel=0.01)


def test_a_working_directory_that_was_removed_is_said_to_be(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(["validate", str(tiny_corpus / "corpus.yaml")]) == 2
    assert "the working directory was removed; change to one that exists" in capsys.readouterr().err
    with pytest.raises(msd.ConfigError, match="working directory was removed"):
        msd.load_config(tiny_corpus / "corpus.yaml")
