"""What a run needs of its machine, storage and checkpoint: said beforehand, with what to do."""

import os
import resource
import tempfile

import pytest

import msd
from msd.runtime import health
from msd.runtime.health import FILES_WANTED, READ_BYTES, Finding, look_at_checkpoint, look_at_machine, look_at_storage
from msd.testing import scenarios


def by_subject(findings) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def config(path, **changes) -> msd.Config:
    return scenarios.text(
        sources={"books": {"path": str(path), "transforms": [{"kind": "tokens", "field": "ids"}]}},
        mixture={"weights": {"books": 1}},
        **changes,
    )


def test_a_machine_that_runs_tests_can_run_msd():
    found = by_subject(look_at_machine())
    assert {finding.subject for finding in found.values() if finding.verdict == "bad"} == set()
    assert {"python", "packages", "open files", "temporary files", "ports", "index cache"} <= found.keys()
    assert "pyarrow" in found["packages"].found


def test_a_package_that_is_missing_or_too_old_is_named():
    wanted = ["numpy>=1.26", "dask>=2026.1", 'torch>=2.6; extra == "torch"']
    versions = {"numpy": "1.20.0"}
    found = health._packages(wanted, versions.get)
    assert found.verdict == "bad"
    assert "numpy 1.20.0 is not >=1.26" in found.found
    assert "dask is missing" in found.found
    assert "torch" not in found.found
    assert "torch 2.1 is not" in health._packages(wanted, {"numpy": "2.0", "dask": "2026.2", "torch": "2.1"}.get).found
    good = health._packages(wanted, {"numpy": "2.0", "dask": "2026.2", "torch": "2.9"}.get)
    assert (good.verdict, good.found) == ("fine", "numpy 2.0, dask 2026.2, torch 2.9")


@pytest.mark.parametrize(
    ("hard", "verdict"),
    [(resource.RLIM_INFINITY, "fine"), (FILES_WANTED, "fine"), (FILES_WANTED - 1, "notice")],
)
def test_few_open_files_are_a_notice_with_the_limit_to_ask_for(hard, verdict):
    found = health.open_files(256, hard)
    assert found.verdict == verdict
    assert (str(FILES_WANTED) in found.advice) == (verdict == "notice")


@pytest.mark.parametrize(
    ("nbytes", "first_s", "seconds", "verdict"),
    [
        (READ_BYTES, 0.01, 0.1, "fine"),
        (READ_BYTES, 0.01, 1.0, "notice"),
        (1000, 0.5, 0.5, "notice"),
        (1000, 0.1, 0.1, "fine"),
    ],
)
def test_storage_is_slow_by_its_first_byte_or_by_its_rate(nbytes, first_s, seconds, verdict):
    assert health.storage("books", nbytes, first_s, seconds).verdict == verdict


def test_a_temporary_directory_that_cannot_be_used_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    found = health._temporary()
    assert found.verdict == "bad"
    assert "TMPDIR" in found.advice
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    found = health._temporary()
    assert found.verdict != "fine"
    assert os.listdir(long) == []


def test_each_place_of_sources_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("hello\n" * 1000)
    found = list(look_at_storage(config(tmp_path / "a.txt")))
    assert [(one.subject, one.verdict) for one in found] == [("storage of books", "fine")]
    assert health.place_of(str(tmp_path / "a.txt")) == health.place_of(str(tmp_path / "not" / "there"))
    assert health.place_of("s3://bucket/a/b") == health.place_of("s3://bucket/c") == "s3://bucket"
    assert health.place_of("simplecache::s3://other/c") == "s3://other"


def test_a_source_that_is_not_there_is_bad(tmp_path):
    (found,) = look_at_storage(config(tmp_path / "none.parquet"))
    assert found.verdict == "bad"
    assert "does not exist" in found.found


def test_a_checkpoint_is_tried_and_nothing_is_left(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    (found,) = look_at_checkpoint(config(tmp_path / "a.txt", checkpoint={"path": str(tmp_path / "states" / "run")}))
    assert found.verdict in ("fine", "notice")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]
    (found,) = look_at_checkpoint(config(tmp_path / "a.txt"))
    assert (found.verdict, found.found) == ("notice", "none is kept")


def test_a_checkpoint_in_memory_is_tried_by_its_url(tmp_path):
    import fsspec

    (tmp_path / "a.txt").write_text("hello\n")
    (found,) = look_at_checkpoint(config(tmp_path / "a.txt", checkpoint={"path": "memory://doctor/states"}))
    assert found.verdict in ("fine", "notice")
    assert fsspec.filesystem("memory").find("/doctor") == []


def test_a_checkpoint_that_cannot_be_written_is_bad(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("hello\n")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("msd.checkpoint.folder.write_all", full)
    (found,) = look_at_checkpoint(config(tmp_path / "a.txt", checkpoint={"path": str(tmp_path / "states")}))
    assert found.verdict == "bad"
    assert "No space left" in found.found
