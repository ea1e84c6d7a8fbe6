"""Mistakes that people make, each found before anything runs and each mended from its message alone."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from msd.cli.main import run

ROWS = [{"text": f"row {number} says something of some length", "number": number} for number in range(40)]
Settings = dict[str, Any]


def tokenize() -> list[Settings]:
    return [{"kind": "tokenize", "tokenizer": "bytes", "field": "text", "append_eos": True}]


def settings() -> Settings:
    return {
        "sources": {
            "web": {"format": "jsonl", "path": "web/*.jsonl", "transforms": tokenize()},
            "table": {"format": "parquet", "path": "table/*.parquet", "transforms": tokenize()},
        },
        "mixture": {"weights": {"web": 1.0, "table": 1.0}},
        "batch": {"sequence_length": 128, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
        "cost": {"backbone": {"kind": "attention"}},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "run"
    (root / "web").mkdir(parents=True)
    (root / "table").mkdir()
    for number in range(2):
        (root / "web" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        pq.write_table(pa.Table.from_pylist(ROWS), root / "table" / f"{number}.parquet")
    return root


def found(pattern: str, message: str) -> str:
    match = re.search(pattern, message)
    assert match is not None, f"{pattern} is not in: {message}"
    return match.group(1)


# Each mistake is a pair: what goes wrong, and what a person does who has read the message and nothing else.


def misspelt_key(root: Path, config: Settings) -> None:
    config["sources"]["web"]["fromat"] = config["sources"]["web"].pop("format")


def mend_key(message: str, root: Path, config: Settings) -> None:
    wrong, right = found(r"unknown key '(\w+)'", message), found(r"did you mean '(\w+)'", message)
    place = config["sources"][found(r"sources\.(\w+)\.", message)]
    place[right] = place.pop(wrong)


def unknown_source(root: Path, config: Settings) -> None:
    config["mixture"]["weights"] = {"wbe": 1.0, "table": 1.0}


def mend_source(message: str, root: Path, config: Settings) -> None:
    weights = config["mixture"]["weights"]
    weights[found(r"did you mean '(\w+)'", message)] = weights.pop(found(r"no source '(\w+)'", message))


def negative_weight(root: Path, config: Settings) -> None:
    config["mixture"]["weights"]["web"] = -1.0


def mend_weight(message: str, root: Path, config: Settings) -> None:
    config["mixture"]["weights"][found(r"weight of '(\w+)'", message)] = float(found(r"(0) leaves it out", message))


def zero_weights(root: Path, config: Settings) -> None:
    config["mixture"]["weights"] = {"web": 0, "table": 0}


def mend_zero_weights(message: str, root: Path, config: Settings) -> None:
    found(r"(give at least one source a share)", message)
    config["mixture"]["weights"]["web"] = 1


def uneven_mesh(root: Path, config: Settings) -> None:
    config["mesh"] = {"dp": 3}


def mend_mesh(message: str, root: Path, config: Settings) -> None:
    config["batch"][found(r"batch\.(\w+) 8 does not divide", message)] = int(found(r"for instance (\d+)", message))


def missing_tokenizer(root: Path, config: Settings) -> None:
    config["sources"]["web"]["transforms"][0]["tokenizer"] = "tokenizer.json"


def broken_tokenizer(root: Path, config: Settings) -> None:
    (root / "tokenizer.json").write_text('{"model": 3')
    missing_tokenizer(root, config)


def mend_tokenizer(message: str, root: Path, config: Settings) -> None:
    source = config["sources"][found(r"sources\.(\w+)", message)]
    source["transforms"][0]["tokenizer"] = found(r"tokenizer: (bytes)", message)


def empty_glob(root: Path, config: Settings) -> None:
    config["sources"]["web"]["path"] = "web/*.json"


def mend_glob(message: str, root: Path, config: Settings) -> None:
    there, ending = found(r"; (\S+) holds", message), found(r"holds \d+ (\.\w+)", message)
    config["sources"][found(r"sources\.(\w+)", message)]["path"] = f"{there}/*{ending}"


def empty_file(root: Path, config: Settings) -> None:
    (root / "web" / "2.jsonl").write_bytes(b"")


def mend_by_removing(message: str, root: Path, config: Settings) -> None:
    found(r"(remove it)", message)
    Path(found(r": (\S+) is empty", message)).unlink()


def truncated_parquet(root: Path, config: Settings) -> None:
    whole = (root / "table" / "1.parquet").read_bytes()
    (root / "table" / "1.parquet").write_bytes(whole[: len(whole) // 2])


def mend_by_writing_again(message: str, root: Path, config: Settings) -> None:
    found(r"(write it again)", message)
    pq.write_table(pa.Table.from_pylist(ROWS), found(r": (\S+) is truncated", message))


def wrong_column(root: Path, config: Settings) -> None:
    config["sources"]["table"]["columns"] = ["txt"]


def mend_column(message: str, root: Path, config: Settings) -> None:
    columns = config["sources"][found(r"sources\.(\w+)", message)]["columns"]
    columns[columns.index(found(r"no column '(\w+)'", message))] = found(r"did you mean '(\w+)'", message)


def wrong_field(root: Path, config: Settings) -> None:
    config["sources"]["table"]["transforms"][0]["field"] = "txt"


def mend_field(message: str, root: Path, config: Settings) -> None:
    found(r"no field '(txt)'", message)
    number = int(found(r"in transform (\d+)", message))
    transform = config["sources"][found(r"sources\.(\w+)", message)]["transforms"][number]
    transform["field"] = found(r"this row has '(\w+)'", message)


def mixed_schemas(root: Path, config: Settings) -> None:
    pq.write_table(pa.Table.from_pylist([{"text": "more", "place": "x"}] * 40), root / "table" / "2.parquet")


def mend_schemas(message: str, root: Path, config: Settings) -> None:
    first, second = found(r": (\S+) and \S+ do not", message), found(r" and (\S+) do not", message)
    found(r"(make two sources)", message)
    name = found(r"sources\.(\w+)", message)
    others = [str(path) for path in Path(first).parent.iterdir() if str(path) != second]
    config["sources"]["second"] = {**config["sources"][name], "path": second, "transforms": tokenize()}
    config["sources"][name]["path"] = others


def nothing_survives(root: Path, config: Settings) -> None:
    config["sources"]["web"]["transforms"].insert(0, {"kind": "filter", "field": "text", "min_length": 100_000})


def mend_survival(message: str, root: Path, config: Settings) -> None:
    found(r"(64 filtered)", message)
    config["mixture"]["weights"][found(r"sources\.(\w+)", message)] = int(found(r"weight to (0)", message))


Break = Callable[[Path, Settings], None]
Mend = Callable[[str, Path, Settings], None]
MISTAKES: list[tuple[Break, Mend]] = [
    (misspelt_key, mend_key),
    (unknown_source, mend_source),
    (negative_weight, mend_weight),
    (zero_weights, mend_zero_weights),
    (uneven_mesh, mend_mesh),
    (missing_tokenizer, mend_tokenizer),
    (broken_tokenizer, mend_tokenizer),
    (empty_glob, mend_glob),
    (empty_file, mend_by_removing),
    (truncated_parquet, mend_by_writing_again),
    (wrong_column, mend_column),
    (wrong_field, mend_field),
    (mixed_schemas, mend_schemas),
    (nothing_survives, mend_survival),
]


@pytest.mark.parametrize(("mistake", "mend"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES])
def test_a_mistake_is_one_line_and_is_mended_from_it(
    mistake: Break, mend: Mend, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings()
    mistake(folder, config)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    before = sorted(folder.rglob("*"))

    assert run(["validate", str(path)]) == 2
    out, message = capsys.readouterr()
    # A mistake in the settings is told alone; one in a source beside the table of all sources.
    assert out == "" or out.count("at fault") == 1
    assert "is fine" not in out
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert sorted(folder.rglob("*")) == before

    mend(message, folder, config)
    path.write_text(yaml.safe_dump(config))
    assert run(["validate", str(path)]) == 0
    assert run(["plan", str(path), "--steps", "2", "--json"]) == 0


def test_without_a_mistake_everything_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(settings()))
    assert run(["validate", str(folder / "run.yaml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(source["name"], source["rows"]) for source in told["sources"]] == [("table", 64), ("web", 64)]
    assert told["remarks"] == []


@pytest.mark.parametrize("command", ["index", "plan", "preview"])
def test_other_commands_refuse_a_mistake_in_the_same_way(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings()
    empty_glob(folder, config)
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    assert run([command, str(folder / "run.yaml")]) == 2
    assert "matches no file" in capsys.readouterr().err
