"""What killed runs left is removed by whether they live, never by its name alone."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from msd.client.link.server import LinkServer
from msd.runtime.dask.leftovers import LOOK_S, MEMBERS_FILE, OPENING_S, OWNER_FILE, add_member, clean, own, remove


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def owned_by_another(folder: Path) -> subprocess.Popen[bytes]:
    """Have another process own a folder."""
    program = "import sys, pathlib; from msd.runtime.dask.leftovers import own; own(pathlib.Path(sys.argv[1])); input()"
    other = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder / OWNER_FILE).exists() or not (folder / OWNER_FILE).read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return other


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_goes_when_the_process_that_owns_it_is_dead_and_not_before(folder):
    mine, theirs = folder / "msd-mine", folder / "msd-theirs"
    own(mine)
    other = owned_by_another(theirs)
    (theirs / "deep").mkdir()
    (theirs / "deep" / "file").write_text("x")
    try:
        assert clean() == []
    finally:
        end(other)
    assert clean() == [theirs]
    assert mine.exists()
    assert not theirs.exists()


def test_a_process_number_that_came_again_is_another_process(folder):
    path = folder / "msd-old"
    own(path)
    pid, life = (path / OWNER_FILE).read_text().splitlines()
    started, machine = life.split(" ", 1)
    (path / OWNER_FILE).write_text(f"{pid}\n{int(started) - 1} {machine}\n")
    assert clean() == [path]


@pytest.mark.parametrize(
    "owner",
    ["", "1", "no number\nx y\n", f"{os.getpid()}\n17 another machine\n", "0\n\n"],
    ids=["nothing", "a line", "words", "of another machine", "blank"],
)
def test_a_folder_whose_owner_cannot_be_told_stays(folder, owner):
    for name in ("msd-strange", "msd-nobodys"):
        (folder / name).mkdir()
    (folder / "msd-strange" / OWNER_FILE).write_text(owner)
    (folder / "others").mkdir()
    assert clean() == []


def test_a_socket_goes_when_nobody_listens_at_it(folder):
    path = folder / "msd-run-0-e1.sock"
    with LinkServer(None, run="r", token="t", version="v", unix_path=str(path)):  # type: ignore[arg-type]
        assert [entry.name for entry in folder.iterdir()] == [path.name]
        assert clean() == []
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert clean() == [path]


def test_a_socket_that_is_being_opened_stays_for_a_while(folder):
    path = folder / "msd-run-0-e1.soc~"
    with socket.socket(socket.AF_UNIX) as opening:
        opening.bind(str(path))
        assert clean() == []
        old = time.time() - OPENING_S - 1
        os.utime(path, (old, old))
        assert clean() == [path]


def test_plain_files_and_links_are_nobodys_business(folder):
    (folder / "msd-file").write_text("x")
    (folder / "msd-link").symlink_to(folder / "msd-file")
    assert clean() == []


def test_of_what_a_dead_owner_started_only_what_is_frozen_is_ended_at_once(folder):
    path = folder / "msd-dead"
    other = owned_by_another(path)
    frozen, waiting = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    try:
        for member in (frozen, waiting):
            add_member(path, member.pid)
        os.kill(frozen.pid, signal.SIGSTOP)
        os.waitpid(frozen.pid, os.WUNTRACED)
        assert clean() == []
        end(other)
        assert clean() == [path]
        assert frozen.wait(60) == -signal.SIGKILL
        assert waiting.poll() is None
    finally:
        for process in (other, frozen, waiting):
            end(process)


OWNER = """
import pathlib, sys
from msd.runtime.dask.leftovers import add_member, own, watch
folder = pathlib.Path(sys.argv[1])
own(folder)
add_member(folder, int(sys.argv[2]))
watch(folder, grace_s=0.1)
print("ready", flush=True)
input()
"""
# As a transform does that runs on a thread: the main thread waits for the interpreter, and sleeps.
HOLDS_THE_INTERPRETER = """
import re, threading
threading.Thread(target=re.match, args=("(a+)+$", "a" * 64 + "b"), daemon=True).start()
threading.Event().wait()
"""


def test_a_process_that_never_lets_go_of_the_interpreter_ends_some_time_after_its_owner(folder):
    path, pipes = folder / "msd-run", {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holding = subprocess.Popen([sys.executable, "-c", HOLDS_THE_INTERPRETER])
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(path), str(holding.pid)], **pipes)
    try:
        assert owner.stdout.readline() == b"ready\n"
        time.sleep(2 * LOOK_S)
        assert holding.poll() is None
        end(owner)
        assert holding.wait(60) == -signal.SIGKILL
        until = time.monotonic() + 60
        while path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert not path.exists()
    finally:
        for process in (owner, holding):
            end(process)


def test_a_number_that_came_again_is_no_member(folder):
    path = folder / "msd-dead"
    path.mkdir()
    member = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        add_member(path, member.pid)
        pid, started, machine = (path / MEMBERS_FILE).read_text().split(" ", 2)
        (path / MEMBERS_FILE).write_text(f"{pid} {int(started) - 1} {machine}nonsense\n")
        os.kill(member.pid, signal.SIGSTOP)
        os.waitpid(member.pid, os.WUNTRACED)
        remove(path)
        os.kill(member.pid, signal.SIGCONT)
        assert member.poll() is None
        assert not path.exists()
    finally:
        end(member)
