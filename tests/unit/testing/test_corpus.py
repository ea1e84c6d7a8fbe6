"""The demo corpus: reproducible, readable, and careful with what is already there."""

import filecmp
import gzip
import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from msd.config import load_config
from msd.errors import InputError
from msd.testing.corpus import CorpusReport, make_corpus

SCALE = 0.03


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CorpusReport:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "demo", scale=SCALE)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_two_runs_are_equal_byte_for_byte(made: CorpusReport, tmp_path: Path) -> None:
    again = make_corpus(tmp_path / "again", scale=SCALE)
    names = files_below(made.path)
    assert names == files_below(again.path)
    assert filecmp.cmpfiles(made.path, again.path, names, shallow=False) == (names, [], [])


def test_another_seed_draws_other_files(made: CorpusReport, tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", scale=SCALE, seed=18)
    first, second = (pq.read_table(report.path / "code")["path"].to_pylist() for report in (made, other))
    assert first != second


def test_each_format_holds_the_rows_that_the_report_counts(made: CorpusReport) -> None:
    rows = {source.name: source.rows for source in made.sources}
    assert pq.read_table(made.path / "code").num_rows == rows["code"]
    plain = b"".join(path.read_bytes() for path in sorted((made.path / "docs").iterdir()))
    zipped = b"".join(gzip.decompress(path.read_bytes()) for path in (made.path / "descriptions").iterdir())
    framed = b"".join(
        zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()
        for path in (made.path / "docstrings").iterdir()
    )
    for name, lines in (("docs", plain), ("descriptions", zipped), ("docstrings", framed)):
        texts = [json.loads(line)["text"] for line in lines.splitlines()]
        assert len(texts) == rows[name]
        assert all(len(text) >= 80 for text in texts)


def test_docstrings_come_in_several_frames(tmp_path: Path) -> None:
    from msd.testing.corpus.write import write_jsonl_zst

    (path,) = write_jsonl_zst([{"text": str(n)} for n in range(10)], tmp_path / "z", num_files=1, rows_per_frame=4)
    assert path.read_bytes().count(zstandard.FRAME_HEADER) == 3


def test_captions_say_the_size_that_the_image_has(made: CorpusReport) -> None:
    seen = 0
    for shard in sorted((made.path / "photos").glob("*.tar")):
        with tarfile.open(shard) as archive:
            for name in archive.getnames():
                if name.endswith(".jpg"):
                    image = Image.open(archive.extractfile(name))
                    caption = archive.extractfile(name.replace(".jpg", ".txt")).read().decode()
                    assert f"{image.width} by {image.height} pixels" in caption
                    seen += 1
    assert seen == {source.name: source.rows for source in made.sources}["photos"]


def test_the_configuration_it_writes_loads(made: CorpusReport) -> None:
    config = load_config(made.config)
    assert set(config.sources) == {source.name for source in made.sources}
    assert sum(config.weights.values()) == pytest.approx(1.0)


def test_a_folder_of_other_things_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not empty and not a corpus"):
        make_corpus(tmp_path / "mine", scale=SCALE)
    assert files_below(tmp_path) == ["mine/thesis.tex"]


def test_force_never_takes_the_place_of_files_that_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.md").write_text("x")
    with pytest.raises(InputError, match="was not made by msd"):
        make_corpus(tmp_path, scale=SCALE, force=True)
    assert files_below(tmp_path) == ["docs/thesis.md"]


def test_making_it_again_replaces_its_own_files_and_keeps_others(made: CorpusReport, tmp_path: Path) -> None:
    target = tmp_path / "demo"
    make_corpus(target, scale=SCALE, seed=18)
    (target / "notes.txt").write_text("mine")
    (target / "code" / "stale.parquet").write_text("old")
    make_corpus(target, scale=SCALE)
    assert files_below(target) == sorted([*files_below(made.path), "notes.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msd.testing.corpus import recipe

    def fails(*arguments: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(recipe, "train_tokenizer", fails)
    with pytest.raises(RuntimeError):
        make_corpus(tmp_path / "demo", scale=SCALE)
    assert list(tmp_path.iterdir()) == []


def partial(folder: Path, name: str, pid: int, builder: dict[str, object]) -> Path:
    left = folder / f".{name}.{pid}.abc_1.partial"
    (left / "code").mkdir(parents=True)
    (left / ".msd-corpus-building.json").write_text(json.dumps(builder))
    return left


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = {"made_by": "msd corpus", "host": socket.gethostname(), "pid": ended.pid}
    dead = partial(tmp_path, "demo", ended.pid, own)
    kept = [
        partial(tmp_path, "demo", os.getpid(), own | {"pid": os.getpid()}),
        partial(tmp_path, "other", ended.pid, own),
        tmp_path / f".demo.{ended.pid}.unmarked.partial",
    ]
    kept[2].mkdir()
    elsewhere = tmp_path / f".demo.{ended.pid}.elsewhere.partial"
    elsewhere.mkdir()
    (elsewhere / ".msd-corpus-building.json").write_text(json.dumps(own | {"host": "another machine"}))
    make_corpus(tmp_path / "demo", scale=SCALE)
    assert not dead.exists()
    assert all(folder.is_dir() for folder in (*kept, elsewhere))


def test_a_process_that_is_killed_leaves_what_the_next_one_removes(tmp_path: Path) -> None:
    program = (
        "import os, signal\nfrom msd.testing.corpus import make_corpus, recipe\n"
        "recipe.train_tokenizer = lambda *given: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"make_corpus({str(tmp_path / 'demo')!r}, scale={SCALE})"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert [path.name.endswith(".partial") for path in tmp_path.iterdir()] == [True]
    make_corpus(tmp_path / "demo", scale=SCALE)
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    assert ".msd-corpus-building.json" not in {path.name for path in (tmp_path / "demo").iterdir()}
