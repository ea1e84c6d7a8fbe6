"""Batch mode: the sequences of the stream as files, however many workers and interruptions there were."""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from processes import Start, programs

import msd
from msd.cli.main import run as command
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

STEPS = 60
SETTINGS = """
sources:
  books:
    format: jsonl
    path: books.jsonl
    transforms: [{kind: tokens, field: ids}]
  web:
    format: jsonl
    path: web.jsonl
    transforms: [{kind: tokens, field: ids}]
mixture: {weights: {books: 1, web: 2}}
batch: {sequence_length: 256, global_batch_size: 64}
mesh: {dp: 2}
num_microbatches: 2
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("books", "web"), 1):
        rows = scenarios.token_rows(seed, 3000, 60)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    with programs(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "whole"
    assert command(["run", str(data / "run.yaml"), "--out", str(out), "--steps", str(STEPS), "--workers", "1"]) == 0
    return out


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_sequences_are_those_that_ranks_of_the_stream_receive(data, undisturbed):
    manifest = json.loads((undisturbed / "manifest.json").read_text())
    assert manifest["totals"]["rows"] == STEPS * 64
    assert {path.name for path in undisturbed.iterdir()} == {
        "manifest.json",
        *(one["name"] for one in manifest["parts"]),
    }
    assert len(manifest["parts"]) > 5
    rows = iter(row for one in manifest["parts"] for row in pq.read_table(undisturbed / one["name"]).to_pylist())
    with msd.start(msd.load_config(data / "run.yaml"), runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for step in range(STEPS):
            for bucket, client in enumerate(clients):
                batch = next(client)
                ids = iter(batch.sample_ids)
                for number, microbatch in enumerate(batch.microbatches):
                    real = np.diff(microbatch.cu_seqlens).tolist()
                    starts = microbatch.cu_seqlens_padded[:-1].tolist()
                    for sequence in range(16):
                        row, begin = next(rows), 256 * sequence
                        assert (row["step"], row["bucket"], row["microbatch"], row["sequence"]) == (
                            step, bucket, number, sequence,
                        )  # fmt: skip
                        assert row["input_ids"] == microbatch.input_ids[begin : begin + 256].tolist()
                        assert row["labels"] == microbatch.labels[begin : begin + 256].tolist()
                        here = [(at - begin, length) for at, length in zip(starts, real, strict=True)
                                if begin <= at < begin + 256 and length]  # fmt: skip
                        assert list(zip(row["document_starts"], row["document_lengths"], strict=True)) == here
                        found = list(zip(row["sources"], row["ordinals"], row["parts"], strict=True))
                        assert found == [tuple(next(ids)) for _ in found]
    assert next(rows, None) is None


def test_the_number_of_workers_and_a_second_run_change_no_byte(data, undisturbed, tmp_path, capsys):
    out = tmp_path / "three"
    arguments = ["run", str(data / "run.yaml"), "--out", str(out), "--steps", str(STEPS), "--workers", "3"]
    assert command(arguments) == 0
    assert contents(out) == contents(undisturbed)
    began = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))["files"] > 5
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == began, "it was verified, and nothing written"


def test_killed_at_five_random_points_it_goes_on_and_every_byte_is_the_same(data, undisturbed, tmp_path, start):
    out, draw = tmp_path / "killed", random.Random(7)
    arguments = ("-m", "msd.cli.main", "run", data / "run.yaml", "--out", out, "--steps", STEPS, "--workers", 2)
    for number in range(5):
        program = start(f"run-{number}", *arguments)
        deadline = time.monotonic() + 60
        # At first wherever it is, then after some files more.
        wanted = draw.randrange(0, 3) + (0 if number == 0 else len(list(out.glob("part-*"))))
        while len(list(out.glob("part-*"))) < wanted and program.process.poll() is None:
            assert time.monotonic() < deadline, program.output
            time.sleep(0.01)
        time.sleep(draw.random() * 0.5)
        program.process.kill()
        program.process.wait()
        assert not (out / "manifest.json").exists() or number > 1
    start("last", *arguments).wait(120)
    assert contents(out) == contents(undisturbed)


def test_samples_are_what_transforms_give_and_a_source_of_another_run(data, tmp_path):
    out = tmp_path / "samples"
    asked = ["run", str(data / "run.yaml"), "--out", str(out), "--format", "samples", "--workers", "1"]
    assert command(asked) == 0
    table = ds.dataset([str(path) for path in sorted(out.glob("books-*.parquet"))]).to_table()
    with msd.start(msd.load_config(data / "run.yaml"), runtime="local") as engine:
        loader = engine._loaders["books"]
        meta = loader.examine(0, 100)
        assert table["ordinal"].to_pylist()[: len(meta.num_tokens_S)] == list(range(100))
        assert [len(ids) for ids in table["input_ids"].to_pylist()[:100]] == meta.num_tokens_S.tolist()
    assert table.num_rows == 3000
    again = scenarios.text(
        sources={"books": {"format": "parquet", "path": str(out / "books-*.parquet"),
                           "transforms": [{"kind": "tokens", "field": "input_ids"}]}},
        mixture={},
    )  # fmt: skip
    with msd.start(again, runtime="local") as engine:
        assert next(engine.client(0)).num_valid_tokens > 0


def refused(capsys: Any, *arguments: object) -> str:
    assert command([str(word) for word in arguments]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_written_is_refused_and_what_is_damaged_is_found(data, undisturbed, tmp_path, capsys):
    run = ["run", data / "run.yaml", "--out"]
    assert "needs --out DIR" in refused(capsys, "run", data / "run.yaml")
    assert "this mixture never ends" in refused(capsys, *run, tmp_path / "endless")
    assert "mesh.cp" in refused(capsys, *run, tmp_path / "sliced", "--steps", 2, "mesh={dp: 1, cp: 2}")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("all of it")
    assert "holds other things, such as thesis.txt" in refused(capsys, *run, foreign, "--steps", 2)
    assert "seed" in refused(capsys, *run, undisturbed, "--steps", STEPS, "seed=3")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in undisturbed.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    torn = copy / "part-000001.parquet"
    torn.write_bytes(torn.read_bytes()[:-1])
    assert command(["run", str(data / "run.yaml"), "--out", str(copy), "--steps", str(STEPS)]) == 1
    assert "part-000001.parquet" in capsys.readouterr().err
    torn.unlink()
    (copy / "manifest.json").unlink()
    # Without what is said of each file they count for nothing.
    assert "holds other things" in refused(capsys, *run, copy, "--steps", STEPS)
