"""Hundreds of clients one after the other, and two runs in one process: nothing of them stays."""

import gc
import os
import threading

import pytest
from link_run import SETTINGS, ScriptedRun, contents, make_batch, short_folder, url

from msd.client import RankClient
from msd.client.link.server import LinkServer
from msd.client.remote import SocketTransport
from msd.errors import ClosedError

CYCLES = 200


def connect(address, rank=0):
    return RankClient(SocketTransport(address, deadline_s=60.0), rank=rank)


def hear_of_the_end(call, argument):
    with pytest.raises(ClosedError):
        call(argument)


def held(others=()):
    """Threads of the link and files of this process; `others` are threads that were there before."""
    gc.collect()
    new = [thread for thread in threading.enumerate() if thread not in others]
    threads = sorted(thread.name for thread in new if thread.name.startswith("msd-"))
    return threads, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("number", [0, 1], ids=["unix", "tcp"])
def test_hundreds_of_clients_leave_no_thread_and_no_file(number):
    run = ScriptedRun(tokens=16)
    others = threading.enumerate()
    with short_folder() as folder, LinkServer(run, unix_path=str(folder / "link"), **SETTINGS) as server:
        before = held(others)
        for cycle in range(CYCLES):
            with connect(url(server, number), cycle % 2) as client:
                if cycle % 3:
                    next(client)
        run.until(lambda: len(run.farewells) + len(run.losses) == CYCLES)
        # The run's side of the last connection ends a moment after the rank's.
        with server._changed:
            assert server._changed.wait_for(lambda: not server._conversations, 20)
        assert held(others) == before
        assert run.losses == []
        assert os.listdir(folder) == ["link"]
    assert not held(others)[0]


def test_two_runs_in_one_process_know_nothing_of_each_other():
    runs = [ScriptedRun(tokens=16), ScriptedRun(tokens=32)]
    before = held()
    with LinkServer(runs[0], **SETTINGS) as one, LinkServer(runs[1], **{**SETTINGS, "run": "r2"}) as two:
        clients = [
            connect(url(server, run=name), rank) for rank in (0, 1) for server, name in ((one, "r1"), (two, "r2"))
        ]
        found = [contents(next(client)) for client in clients]
        one.close(ClosedError("the first run was closed"))
        assert [next(clients[number]).step for number in (1, 3)] == [1, 1]
        for number in (0, 2):
            with pytest.raises(ClosedError, match="the first run was closed"):
                list(clients[number])
        for client in clients:
            client.close()
    assert found == [contents(make_batch(0, rank, tokens=size)) for rank in (0, 1) for size in (16, 32)]
    assert held() == before


def test_a_client_closed_while_it_looks_for_its_run_ends_at_once():
    before = held()
    run = ScriptedRun()
    server = LinkServer(run, **SETTINGS)
    client = connect(url(server))
    server.close()
    looking = threading.Thread(target=hear_of_the_end, args=(list, client))
    looking.start()
    client.close()
    looking.join(20)
    assert not looking.is_alive()
    assert held() == before


def test_a_client_closed_while_its_load_is_worked_on_ends_at_once():
    before = held()
    run, asked, go_on = ScriptedRun(), threading.Event(), threading.Event()

    def slow(*arguments):
        asked.set()
        assert go_on.wait(20)
        return run.moved()

    run.load = slow
    with LinkServer(run, **SETTINGS) as server:
        client = connect(url(server))
        loading = threading.Thread(target=hear_of_the_end, args=(client.load_state_dict, {"step": 1}))
        loading.start()
        assert asked.wait(20)
        client.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "msd-rank-0"]
        loading.join(20)
        go_on.set()
        run.until(lambda: run.losses == [0])
    assert held() == before
