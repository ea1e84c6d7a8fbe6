"""Rows that end, hang or exhaust their process take one host at most, and every other row gives what it gives."""

import json
import subprocess
import sys
from pathlib import Path

import poison_host
import pytest

from msd.core.sample import Outcome
from msd.loader.poison.notes import Others

pytestmark = pytest.mark.faults

PATIENCE_S = 50
EXPECTED = [
    [int(Outcome.KILLED), []] if row["n"] in poison_host.HARMFUL else [int(Outcome.OK), [row["ids"]]]
    for row in poison_host.ROWS
]


class Hosts:
    """Starts hosts one after another until one gets through, as a run does."""

    def __init__(self, folder: Path, harm: str, where: str) -> None:
        self.folder = folder
        self.harm = harm
        self.where = where
        self.ended: list[int] = []
        """How hosts ended, those that did not get through."""
        self.killed: dict[int, str] = {}
        self.suspected: set[int] = set()

    def run(self) -> dict:
        while True:
            known = json.dumps([sorted(self.killed), sorted(self.suspected)])
            program = [sys.executable, poison_host.__file__, str(self.folder), self.harm, self.where, known]
            host = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
            try:
                said = self._watched(host)
            finally:
                host.kill()
                host.wait()
            lines = [json.loads(line) for line in said.splitlines()]
            self.killed.update({line["killed"]: line["how"] for line in lines if "killed" in line})
            self.suspected.update(*(line["ended"] for line in lines if "ended" in line))
            if host.returncode == 0:
                return lines[-1]
            self.ended.append(host.returncode)
            assert len(self.ended) < 6

    def _watched(self, host: subprocess.Popen) -> str:
        others = Others(self.folder)
        for _ in range(int(PATIENCE_S / 0.5)):
            try:
                return host.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                # Whoever is silent is ended by the run, and nobody else can.
                found = others.left_behind(2.0) if self.harm == "HoldAt" else []
                self.suspected.update(ordinal for ended in found for _, ordinal in ended.rows)
                if any("did nothing" in ended.how for ended in found):
                    host.kill()
        raise AssertionError(f"a host is at it after {PATIENCE_S} s")


@pytest.fixture
def hosts(tmp_path, request):
    return Hosts(tmp_path / "notes", *request.param)


SAID = {
    "SegfaultAt": "SIGSEGV",
    "KillAt": "SIGKILL",
    "LoopAt": "no answer for 0.5 s",
    "HoldAt": "no answer for 0.5 s",
    "EatAt": "more than 0.342 GiB",
    "RaiseMemoryErrorAt": "MemoryError: unable to allocate 9 PiB",
}
IN_THREADS = [harm for harm in SAID if harm != "KillAt"]
ENDS_ITSELF = {"LoopAt", "EatAt"}


@pytest.mark.parametrize("hosts", [(harm, "threads") for harm in IN_THREADS], indirect=True, ids=IN_THREADS)
def test_in_threads_a_row_takes_one_host_and_is_killed_where_nothing_else_is_in_hand(hosts):
    found = hosts.run()
    assert found == {"given": EXPECTED, "failures": list(poison_host.HARMFUL)}
    assert sorted(hosts.killed) == list(poison_host.HARMFUL)
    assert all(how.startswith(SAID[hosts.harm]) for how in hosts.killed.values())
    if hosts.harm == "RaiseMemoryErrorAt":
        assert hosts.ended == []
    else:
        assert 1 <= len(hosts.ended) <= len(poison_host.HARMFUL)
        assert hosts.suspected == set(poison_host.HARMFUL)
    if hosts.harm in ENDS_ITSELF:
        assert set(hosts.ended) == {87}
    assert not hosts.folder.exists()


@pytest.mark.parametrize("hosts", [(harm, "processes") for harm in SAID], indirect=True, ids=list(SAID))
def test_in_processes_a_row_takes_no_host(hosts):
    assert hosts.run() == {"given": EXPECTED, "failures": list(poison_host.HARMFUL)}
    assert sorted(hosts.killed) == list(poison_host.HARMFUL)
    assert all(how.startswith(SAID[hosts.harm]) for how in hosts.killed.values())
    assert hosts.ended == []


@pytest.mark.parametrize("hosts", [("unsendable", "threads")], indirect=True)
def test_a_row_that_no_other_process_can_be_given_takes_two_hosts(hosts):
    assert hosts.run() == {"given": EXPECTED, "failures": list(poison_host.HARMFUL)}
    assert sorted(hosts.killed) == list(poison_host.HARMFUL)
    assert hosts.ended == [-9] * 2 * len(poison_host.HARMFUL)
