"""Folders of packed sequences: what is finished and whole is read, everything else is refused with what to do."""

import json
import shutil

import pytest

from msd.core.written import MANIFEST, RUN
from msd.errors import ConfigError, SourceError
from msd.loader.config import SourceConfig
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
from msd.sources.packed import is_packed, open_origins, read_written
from msd.testing import scenarios
from msd.testing.folders import write_packed


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "out"
    write_packed(scenarios.text("concat"), folder, steps=5, steps_per_file=2)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "out")


def config(folder, **settings):
    return ReaderConfig(format="packed", path=str(folder), **settings)


def table(folder):
    return index_sources({"old": config(folder)})["old"]


def refusal(folder):
    """What is said when the folder is indexed; what it says of itself is read first, where that is at fault."""
    with pytest.raises(SourceError) as caught:
        table(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewritten(folder, **changes):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def test_rows_come_in_the_order_of_the_steps_whatever_the_names_of_files(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    for part in manifest["parts"]:
        (folder / part["name"]).rename(folder / f"z{9 - part['first_step']}.parquet")
        part["name"] = f"z{9 - part['first_step']}.parquet"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (folder / "README.md").write_text("other files are left alone")
    blocks = table(folder)
    assert [shard.name for shard in blocks.shards] == ["z9.parquet", "z7.parquet", "z5.parquet"]
    reader = open_reader("old", config(folder), blocks)
    places = []
    for block in range(blocks.num_blocks):
        rows = reader.read_block(block, blocks.kept_rows(block))
        places += [(row["step"], row["bucket"], row["microbatch"], row["sequence"]) for row in rows]
    reader.close()
    assert places == sorted(places)
    assert len(places) == 5 * 8


def test_origins_are_read_without_the_tokens(written):
    blocks = table(written)
    reader = open_origins("old", config(written), blocks)
    (row,) = reader.read_block(0, blocks.kept_rows(0)[:1])
    reader.close()
    assert set(row) == {"sources", "ordinals", "parts", "first_tokens"}


def test_what_a_folder_says_of_itself_is_told(written):
    found = read_written("old", config(written))
    assert (found.sequence_length, found.document_multiple, found.sequences_per_step) == (128, 1, 8)
    assert (found.num_buckets, found.num_microbatches, found.images, found.tokenizers) == (2, 2, None, ())
    assert read_written("other", config(f"file://{written}/")) == found


def test_a_folder_that_is_not_finished_is_refused(folder):
    (folder / MANIFEST).rename(folder / RUN)
    assert "is not finished; run the `msd run` that writes it again, until it ends" in refusal(folder)
    (folder / RUN).unlink()
    assert "there is no manifest.json" in refusal(folder)
    with pytest.raises(SourceError, match="there is no manifest"):
        read_written("old", config(folder / "part-000000.parquet"))


def test_files_that_are_gone_torn_or_altered_are_refused(folder):
    victim = folder / "part-000001.parquet"
    content = victim.read_bytes()
    victim.write_bytes(content[:-1])
    assert f"has {len(content) - 1} bytes, and {len(content)} were written" in refusal(folder)
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    victim.write_bytes(changed)
    assert "part-000001.parquet is not what was written: its SHA-256" in refusal(folder)
    victim.unlink()
    assert "lacks part-000001.parquet; restore it, or write the folder again" in refusal(folder)


def test_a_file_is_hashed_once_and_again_when_it_or_what_it_must_be_changed(folder, monkeypatch):
    from msd.sources import packed

    hashed = []
    digest = packed._digest
    monkeypatch.setattr(packed, "_digest", lambda raw: hashed.append(raw.name) or digest(raw))
    table(folder)
    assert len(hashed) == 3
    table(folder)
    assert len(hashed) == 3, "an index that is kept was compared when it was made"
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["parts"][0]["sha256"] = "0" * 64
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert "part-000000.parquet is not what was written" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "samples"}, "holds samples, not packed sequences"),
        ({"version": 1}, "is of version 1, this release reads 2"),
        ({"version": "two"}, "is damaged or no manifest"),
        ({"sequence_lengths": [0]}, "is damaged or no manifest"),
        ({"sequence_lengths": [64, 128]}, "holds sequences of 64, 128 tokens, and a source has one length"),
        ({"parts": [{"name": "part"}]}, "is damaged or no manifest"),
        ({"parts": []}, "holds no sequence"),
    ],
)
def test_other_folders_are_refused(folder, changes, said):
    rewritten(folder, **changes)
    assert said in refusal(folder)


def test_a_manifest_that_is_none_is_refused_and_recognised(folder, written):
    assert is_packed((written / MANIFEST).read_bytes())
    assert not is_packed(b'{"format": "samples", "version": 2}')
    assert not is_packed(b'{"short_name": "a web page"}')
    (folder / MANIFEST).write_text("{")
    assert "is damaged or no manifest of `msd run`" in refusal(folder)


def test_the_same_content_has_the_same_fingerprint_and_other_content_another(folder, written):
    before = read_written("old", config(written)).fingerprint
    assert read_written("old", config(folder)).fingerprint == before
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["parts"][0]["sha256"] = "1" * 64
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert read_written("old", config(folder)).fingerprint != before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": ["a", "b"]}, "reads one folder"),
        ({"columns": ["input_ids"]}, "leave columns and engine out"),
        ({"engine": "fastparquet"}, "leave columns and engine out"),
        ({"options": {"tokeniser": "bytes"}}, "has no option 'tokeniser'"),
    ],
)
def test_settings_that_cannot_mean_anything_are_refused(settings, said):
    with pytest.raises(ConfigError) as caught:
        ReaderConfig(**{"format": "packed", "path": "out", **settings})
    assert said in str(caught.value)


def test_sequences_stay_in_order_unless_shuffling_is_asked_for():
    assert not SourceConfig(format="packed", path="out").is_shuffled
    assert SourceConfig(format="packed", path="out", shuffle=True).is_shuffled
    assert SourceConfig(format="packed", path="out", shuffle=ShuffleConfig(window=3)).is_shuffled
    assert SourceConfig(format="parquet", path="out").is_shuffled
