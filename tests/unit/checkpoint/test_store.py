"""What was saved is there whole, or is refused by name; nothing else in the folder is touched."""

import errno
import json
import logging
import os
import uuid

import pytest

from msd.checkpoint import open_store
from msd.checkpoint.folder import LocalFolder
from msd.errors import ConfigError, EngineError, StateError

STATE = {"kind": "msd", "planner": {"step": 7}, "text": "ä"}


@pytest.fixture(params=["local", "file://", "memory://"])
def where(request, tmp_path):
    if request.param == "memory://":
        return f"memory://{uuid.uuid4().hex}/ckpt"
    return f"{'' if request.param == 'local' else 'file://'}{tmp_path / 'deep' / 'ckpt'}"


def damage(store, name, content=b""):
    store.folder.write(name, content)


def saved(store, *steps):
    return [store.save({**STATE, "at": step}, step=step, run="r1", lineage="l").name for step in steps]


def test_a_store_that_is_not_there_is_empty_and_stays_unmade(where, tmp_path):
    store = open_store(where)
    assert store.newest() is None
    assert store.snapshots() == store.journal() == []
    assert not (tmp_path / "deep").exists()


def test_the_newest_snapshot_is_the_one_saved_last_whatever_its_step(where):
    saved(open_store(where), 100, 200)
    last = open_store(where).save(STATE, step=50, run="r2", lineage="l2")
    newest = open_store(where).newest()
    assert newest == last
    assert (newest.step, newest.run, newest.lineage, newest.state) == (50, "r2", "l2", STATE)
    assert newest.is_whole
    assert newest.size > 0
    assert [snapshot.step for snapshot in open_store(where).snapshots()] == [100, 200, 50]


def test_only_the_newest_whole_snapshots_stay(where):
    store = open_store(where, keep=2)
    saved(store, 1, 2, 3, 4)
    assert [snapshot.step for snapshot in store.snapshots()] == [3, 4]


def test_a_damaged_snapshot_takes_no_place_of_a_whole_one(where):
    names = saved(open_store(where, keep=2), 1, 2)
    damage(open_store(where), names[1], b"{")
    saved(open_store(where, keep=2), 3)
    assert [(s.step, s.is_whole) for s in open_store(where).snapshots()] == [(1, True), (2, False), (3, True)]
    saved(open_store(where, keep=2), 4)
    assert [(s.step, s.is_whole) for s in open_store(where).snapshots()] == [(3, True), (4, True)]


@pytest.mark.parametrize("content", [b"", b'{"kind"', b"\xff\x00"])
def test_a_damaged_newest_one_is_named_loudly_and_the_one_before_is_used(where, content, caplog):
    names = saved(open_store(where), 1, 2)
    damage(open_store(where), names[1], content)
    with caplog.at_level(logging.WARNING, logger="msd"):
        newest = open_store(where).newest()
    assert newest is not None
    assert newest.name == names[0]
    assert f"snapshot {names[1]} is damaged" in caplog.text
    assert f"snapshot {names[0]} of step 1 is used instead" in caplog.text


def test_one_changed_byte_is_damage(where):
    (name,) = saved(open_store(where), 1)
    store = open_store(where)
    content = store.folder.read(name)
    damage(store, name, content.replace(b'"step":7', b'"step":8'))
    with pytest.raises(StateError, match=f"every snapshot .* is damaged .*{name} is damaged: .*torn or changed"):
        store.newest()


def test_all_damaged_names_each(where):
    names = saved(open_store(where), 1, 2)
    for name in names:
        damage(open_store(where), name)
    with pytest.raises(StateError) as caught:
        open_store(where).newest()
    assert all(name in str(caught.value) for name in names)
    assert "\n" not in str(caught.value)


def test_a_snapshot_is_found_by_name_and_by_step(where):
    store = open_store(where)
    names = saved(store, 1, 2)
    again = store.save({"again": True}, step=1, run="r").name
    assert store.find(name=names[0]).state == {**STATE, "at": 1}
    assert store.find(step=1).name == again
    with pytest.raises(StateError, match="has no snapshot of step 5; it has those of steps 1, 2"):
        store.find(step=5)
    with pytest.raises(StateError, match="has no snapshot 'x'"):
        store.find(name="x")


def test_other_files_are_never_touched(tmp_path):
    others = (
        "notes.txt",
        "snapshot-1.json",
        "snapshot-00000001-step-1-abc.json",
        "journal-00000001-step-2-" + "0" * 24,
    )
    for name in others:
        (tmp_path / name).write_text("mine")
    store = open_store(str(tmp_path), keep=1)
    saved(store, 1, 2, 3)
    store.sweep()
    assert all((tmp_path / name).read_text() == "mine" for name in others)
    assert len(store.snapshots()) == 1


def test_a_snapshot_is_plain_json(tmp_path):
    (name,) = saved(open_store(str(tmp_path)), 3)
    whole = json.loads((tmp_path / name).read_text())
    assert whole["kind"] == "msd-snapshot"
    assert whole["state"] == {**STATE, "at": 3}


def test_the_journal_is_read_in_order_since_a_number(where):
    store = open_store(where)
    assert [store.append({"n": n}, run="r", lineage="l") for n in range(3)] == [1, 2, 3]
    assert [entry.record for entry in open_store(where).journal(since=1)] == [{"n": 1}, {"n": 2}]
    assert {entry.lineage for entry in store.journal()} == {"l"}


def test_entries_go_once_every_kept_snapshot_contains_them_and_numbers_never_come_again(where):
    store = open_store(where, keep=2)
    saved(store, 1)
    store.append({"n": 1}, run="r")
    saved(store, 2)
    assert [entry.number for entry in store.journal()] == [1]
    saved(store, 3)
    assert store.journal() == []
    assert open_store(where).append({"n": 2}, run="r") == 2


def test_entries_that_a_snapshot_was_too_early_for_stay(where):
    store = open_store(where, keep=1)
    store.append({"n": 1}, run="r")
    store.append({"n": 2}, run="r")
    store.save(STATE, step=1, run="r", journal=1)
    assert [entry.number for entry in store.journal()] == [2]


def test_a_torn_last_entry_is_left_out_and_said(where, caplog):
    store = open_store(where)
    for n in range(2):
        store.append({"n": n}, run="r")
    last = store.entries()[-1].name
    damage(store, last, b'{"kind"')
    with caplog.at_level(logging.WARNING, logger="msd"):
        assert [entry.record for entry in store.journal()] == [{"n": 0}]
    assert f"journal entry {last} is left out" in caplog.text


def test_a_damaged_entry_before_the_last_is_refused_by_name(where):
    store = open_store(where)
    for n in range(3):
        store.append({"n": n}, run="r")
    damaged = store.entries()[1].name
    damage(store, damaged)
    with pytest.raises(StateError, match=f"entry {damaged} of the journal"):
        store.journal()
    assert [entry.number for entry in store.journal(since=2)] == [3]


def test_a_path_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(ConfigError, match=r"checkpoint.path .*file' is no folder"):
        open_store(str(path))
    with pytest.raises(EngineError, match=r"cannot read the checkpoint .*: Not a directory"):
        saved(open_store(str(path / "below")), 1)
    assert path.read_text() == "x"


def test_a_url_that_nothing_serves_is_refused():
    with pytest.raises(ConfigError, match=r"checkpoint.path 'nosuch://x' cannot be reached: .*nosuch"):
        open_store("nosuch://x")


@pytest.mark.parametrize("at", ["write", "fsync", "replace", "mkstemp"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_folder_is_one_line_and_leaves_what_was_there(tmp_path, monkeypatch, at, code):
    store = open_store(str(tmp_path), keep=1)
    (name,) = saved(store, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(*arguments, **options):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(f"msd.checkpoint.folder.{'tempfile' if at == 'mkstemp' else 'os'}.{at}", fails)
        with pytest.raises(EngineError) as caught:
            saved(store, 2)
        with pytest.raises(EngineError):
            store.append({}, run="r")
    assert f"the checkpoint {tmp_path}: {os.strerror(code)}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert store.newest().name == name
    saved(store, 2)
    assert store.newest().step == 2


def test_a_folder_that_cannot_be_read_says_so(tmp_path, monkeypatch):
    def fails(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("msd.checkpoint.folder.os.scandir", fails)
    with pytest.raises(EngineError, match=f"cannot read the checkpoint {tmp_path}: Permission denied"):
        open_store(str(tmp_path)).newest()


def test_half_written_files_of_killed_writers_go_at_a_sweep(tmp_path):
    store = open_store(str(tmp_path))
    saved(store, 1)
    (tmp_path / ".msd-writing-abc").write_text("half")
    assert [snapshot.step for snapshot in store.snapshots()] == [1]
    store.sweep()
    assert not (tmp_path / ".msd-writing-abc").exists()


def test_what_a_later_release_wrote_is_not_read(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("msd.checkpoint.snapshot.STORE_VERSION", 2)
        saved(open_store(str(tmp_path)), 1)
    with pytest.raises(StateError, match="it is of version 2, this release reads 1"):
        open_store(str(tmp_path)).newest()


def test_the_folder_seam_names_itself(tmp_path):
    assert LocalFolder(str(tmp_path)).path == str(tmp_path)


def test_a_file_system_with_folders_gets_its_folder_made_once_it_is_missed(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}/ckpt")
    system, put, made = store.folder._system, store.folder._system.pipe_file, []

    def needs_folder(path, content):
        if not made:
            raise FileNotFoundError(path)
        put(path, content)

    monkeypatch.setattr(system, "pipe_file", needs_folder)
    monkeypatch.setattr(system, "makedirs", lambda path, exist_ok: made.append(path))
    saved(store, 1)
    assert len(made) == 1
    assert store.newest().step == 1


def test_an_error_of_the_file_system_is_one_line_with_the_url(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")

    def denied(path, content):
        raise RuntimeError("AccessDenied:\n no s3:PutObject")

    monkeypatch.setattr(store.folder._system, "pipe_file", denied)
    with pytest.raises(EngineError, match=r"in the checkpoint memory://\w+: AccessDenied: no s3"):
        saved(store, 1)
