"""One live run at a time writes to a store; a dead one keeps nobody out."""

import json
import os
import subprocess
import sys
import uuid

import pytest

from msd.checkpoint.folder import open_folder
from msd.checkpoint.lease import LEASE_FILE, Lease, describe, liveness, read_owner
from msd.errors import LeaseError


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    return open_folder(str(tmp_path / "ckpt") if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def altered(folder, **changes):
    owner = {**json.loads(folder.read(LEASE_FILE)), **changes}
    folder.write(LEASE_FILE, json.dumps(owner).encode())


def test_a_second_live_run_is_refused_and_told_who_and_what_to_do(folder):
    Lease(folder, run="one").acquire()
    with pytest.raises(LeaseError) as caught:
        Lease(folder, run="two").acquire()
    said = str(caught.value)
    assert f"belongs to run one (process {os.getpid()} on " in said
    assert "end that run first" in said
    assert "checkpoint.take_over: true" in said
    assert "\n" not in said


def test_a_lease_that_was_given_back_is_free(folder):
    lease = Lease(folder, run="one")
    lease.acquire()
    lease.release()
    assert read_owner(folder) is None
    assert Lease(folder, run="two").acquire() is None


def test_taking_over_ends_the_other_at_its_next_renewal(folder):
    first, second = Lease(folder, run="one"), Lease(folder, run="two")
    first.acquire()
    assert second.acquire(take_over=True).run == "one"
    with pytest.raises(LeaseError, match=r"run one has lost the checkpoint .* to run two \(process"):
        first.renew()
    with pytest.raises(LeaseError):
        first.check()
    first.release()
    assert read_owner(folder).run == "two"
    second.renew()


def test_a_dead_owner_of_this_machine_is_followed_at_once(tmp_path):
    program = (
        "import os, sys; from msd.checkpoint.folder import open_folder; from msd.checkpoint.lease import Lease\n"
        "Lease(open_folder(sys.argv[1]), run='dead', lease_s=1e6).acquire(); os.kill(os.getpid(), 9)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    folder = open_folder(str(tmp_path))
    assert liveness(read_owner(folder), now=0.0) == "dead", "it has ended, and nobody has waited for it yet"
    child.wait()
    assert liveness(read_owner(folder), now=0.0) == "dead"
    assert Lease(folder, run="next").acquire().run == "dead"


def test_a_pid_that_came_again_is_another_process(folder):
    Lease(folder, run="one").acquire()
    altered(folder, started=1)
    assert Lease(folder, run="two").acquire().run == "one"


def test_a_run_of_another_machine_holds_its_lease_until_it_is_silent(folder):
    clock = Clock()
    Lease(folder, run="far", lease_s=30, clock=clock).acquire()
    altered(folder, boot="another", host="elsewhere")
    clock.now += 29
    with pytest.raises(LeaseError, match=r"on elsewhere\), renewed 29.0 s ago; .*silent for 30 s"):
        Lease(folder, run="two", clock=clock).acquire()
    clock.now += 2
    assert Lease(folder, run="two", clock=clock).acquire().run == "far"


def test_a_process_of_which_nothing_can_be_read_counts_by_its_age(folder, monkeypatch):
    clock = Clock()
    Lease(folder, run="one", lease_s=30, clock=clock).acquire()
    monkeypatch.setattr("msd.checkpoint.lease._started", lambda pid: None)
    assert liveness(read_owner(folder), now=clock.now + 29) == "unknown"
    assert liveness(read_owner(folder), now=clock.now + 31) == "dead"


def test_a_lease_that_somebody_removed_is_written_again(folder):
    lease = Lease(folder, run="one")
    lease.acquire()
    folder.remove(LEASE_FILE)
    lease.renew()
    assert read_owner(folder).run == "one"


def test_a_child_that_was_forked_does_not_give_the_lease_of_its_parent_back(folder, monkeypatch):
    lease = Lease(folder, run="one")
    lease.acquire()
    with monkeypatch.context() as patched:
        patched.setattr("msd.checkpoint.lease.os.getpid", lambda: os.getppid())
        lease.release()
    assert read_owner(folder).run == "one"


def test_an_owner_is_described_without_its_token(folder):
    Lease(folder, run="one").acquire()
    shown = describe(read_owner(folder))
    assert shown["run"] == "one"
    assert "token" not in shown
