"""A run that is killed and served again is found by the ranks that live on, and gives them what they would have got."""

import os
import signal
import threading
from functools import partial

import pytest
from fault_data import undisturbed, write_config
from fault_ranks import Lockstep, Taken, take
from fault_services import is_alive
from processes import descendants, programs, wait_until

import msd
from msd.client.link.address import kept_token, resolve

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(150)]
STEPS = 60


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path / "data", runtime={"kind": "dask", "workers": 1, "deadline_s": 90})


@pytest.fixture
def start(tmp_path):
    with programs(tmp_path) as start:
        yield start


class Ranks:
    """Two ranks on threads, until they have taken every step."""

    def __init__(self, address):
        self.taken: dict[int, list[Taken]] = {0: [], 1: []}
        self.errors: list[Exception] = []
        self.lockstep = Lockstep(len(self.taken))
        self.threads = [threading.Thread(target=self.loop, args=(address, rank)) for rank in self.taken]
        for thread in self.threads:
            thread.start()

    def loop(self, address, rank):
        try:
            with msd.connect(address, rank=rank, deadline_s=90.0) as client:
                meet = partial(self.lockstep.meet, rank)
                take(client, STEPS, 0.02, self.taken[rank].append, meet, is_over=threading.Event())
        except Exception as error:
            self.errors.append(error)
        finally:
            self.lockstep.leave(rank)

    def reach(self, step):
        wait_until(lambda: self.errors or min(map(len, self.taken.values())) > step, 60, f"step {step}")
        assert not self.errors

    def digests(self):
        for thread in self.threads:
            thread.join(100)
        assert not self.errors
        return {(one.step, rank): one.digest for rank, steps in self.taken.items() for one in steps}


@pytest.mark.parametrize("found_by", ["address", "file"])
def test_ranks_go_on_with_a_run_that_was_killed_and_served_again(config, start, tmp_path, found_by):
    rendezvous, token_file = tmp_path / "address.json", tmp_path / "token"
    serve = ("-m", "msd.cli.main", "serve", config, "--rendezvous", rendezvous)
    options, address = ("--listen", "127.0.0.1:0", "--token-file", token_file), rendezvous.as_uri()
    first = start("first", *serve, *(options if found_by == "address" else ()))
    wait_until(lambda: rendezvous.exists() or first.process.poll() is not None, 60, "the run to be served")
    if found_by == "address":
        at = f"127.0.0.1:{resolve(address).port}"
        options, address = ("--listen", at, "--token-file", token_file), f"msd://{at}?token={kept_token(token_file)}"
    workers, ranks = descendants(first.process.pid), Ranks(address)
    ranks.reach(10)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(20)
    # Of the first run nothing was removed: the file is there, and leads nowhere.
    held = rendezvous.read_text()
    second = start("second", *serve, *(options if found_by == "address" else ()))
    assert ranks.digests() == undisturbed(config, STEPS)
    assert rendezvous.read_text() != held, "the address of the second run names it"
    wait_until(lambda: not any(map(is_alive, workers)), 30, "workers of the first run to end")
    assert second.stop() == 0, second.output
    assert not rendezvous.exists()
