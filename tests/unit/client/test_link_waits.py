"""What takes long and what is silent: the one is waited for, the other is left for another connection."""

import logging
import threading
import time

import pytest
from link_run import SETTINGS, ScriptedRun, contents, heard, make_batch, raw_socket, until_held, url

import msd
from msd.client import RankClient
from msd.client.link import patience
from msd.client.link.address import Address
from msd.client.link.channel import Channel
from msd.client.link.frames import Kind
from msd.client.link.messages import NotYet, Place
from msd.client.link.server import LinkServer
from msd.client.remote import SocketTransport
from msd.errors import ClosedError, DeadlineError, StateError
from msd.testing.proxy import SwallowingProxy


@pytest.fixture
def run():
    return ScriptedRun()


@pytest.fixture
def server(run):
    with LinkServer(run, stall_s=20.0, **SETTINGS) as server:
        yield server


@pytest.fixture
def impatient(monkeypatch):
    """A rank that takes the run for lost soon, and a run that says soon that it is at work."""
    monkeypatch.setattr("msd.client.remote._WAIT_S", 0.2)
    monkeypatch.setattr("msd.client.remote._SILENCE_S", 1.0)
    monkeypatch.setattr("msd.client.remote._LOOK_S", 0.1)
    monkeypatch.setattr("msd.client.link.channel.STALL_S", 1.0)
    monkeypatch.setattr("msd.client.link.channel.OPEN_S", 1.0)
    monkeypatch.setattr(patience, "_WORKING_S", 0.1)


def connect(address, rank=0, **options):
    return RankClient(SocketTransport(address, **{"deadline_s": 60.0, **options}), rank=rank)


def proxied(server):
    address = Address.parse(url(server))
    return SwallowingProxy(address.host, address.port)


def test_a_run_that_is_at_work_on_a_hello_is_waited_for_on_one_connection(server, run, impatient):
    run.change(not_welcome="the planner, which is being replaced")
    welcome = threading.Timer(2.5, run.change, kwargs={"not_welcome": None})
    welcome.start()
    with connect(url(server)) as client:
        welcome.join()
        assert next(client).step == 0
        assert (run.num_asked > 5, len(run.hellos), run.losses) == (True, 1, [])


def test_a_rank_is_told_to_come_again_when_a_hello_is_not_answered_for_long(server, run, monkeypatch):
    monkeypatch.setattr(patience, "SOON_S", 0.3)
    run.change(not_welcome="the planner, which is being replaced")
    with pytest.raises(DeadlineError, match="waits for the planner, which is being replaced"):
        connect(url(server), deadline_s=2.0)
    assert run.losses == []


def test_a_load_that_takes_long_is_not_taken_for_silence(server, run, impatient):
    answer = run.load

    def slow(*arguments):
        time.sleep(2.0)
        return answer(*arguments)

    run.load = slow
    with connect(url(server)) as client:
        client.load_state_dict({"step": 5})
        assert (next(client).step, len(run.hellos), len(run.loads)) == (6, 1, 1)


def test_a_load_that_cannot_be_answered_yet_is_asked_again_by_the_run(server, run, impatient):
    answer, refusals = run.load, [NotYet(waits_for="the planner")] * 3
    run.load = lambda *arguments: refusals.pop() if refusals else answer(*arguments)
    with connect(url(server)) as client:
        client.load_state_dict({"step": 5})
        assert (next(client).step, refusals, len(run.hellos)) == (6, [], 1)


def test_the_reason_why_a_load_waits_is_in_the_error(server, run, impatient):
    run.load = lambda *arguments: NotYet(waits_for="the planner, which is being replaced")
    with connect(url(server), deadline_s=2.0) as client:
        with pytest.raises(DeadlineError, match="has waited 2 s to load a state of run r1; it waits for the planner"):
            client.load_state_dict({"step": 5})
        assert next(client).step == 0


def test_the_end_of_a_run_ends_a_load_that_waits(server, run):
    run.load = lambda *arguments: NotYet(waits_for="the planner")
    with connect(url(server)) as client:
        closing = threading.Timer(0.3, server.close, [ClosedError("the run was closed")])
        closing.start()
        with pytest.raises(ClosedError, match="the run was closed"):
            client.load_state_dict({"step": 5})
        closing.join()


def test_a_rank_that_leaves_while_its_hello_is_worked_on_is_released(server, run, monkeypatch):
    monkeypatch.setattr(patience, "_WORKING_S", 0.05)
    asked, answer, go_on = threading.Event(), run.hello, threading.Event()

    def slow(*arguments):
        asked.set()
        assert go_on.wait(20)
        return answer(*arguments)

    run.hello = slow
    channel = Channel(Address.parse(url(server)))
    channel.open()
    channel.send(Kind.HELLO, {"id": 0, "rank": 1, "client": "a", "stated": None})
    assert asked.wait(20)
    channel.close()
    go_on.set()
    # It was connected meanwhile, and must not hold the others.
    run.until(lambda: run.losses == [1])


def test_loads_are_numbered_and_a_new_client_of_the_rank_counts_on(server, run):
    with connect(url(server)) as client:
        for step in (5, 9):
            client.load_state_dict({"step": step})
        with pytest.raises(StateError):
            client.load_state_dict({"kind": "foreign"})
        client.load_state_dict({"kind": "foreign", "step": 2}, force=True)
        assert (client.generation, client.next_step, next(client).step, client.next_step) == (3, 3, 3, 4)
    with connect(url(server)) as client:
        client.load_state_dict({"step": 1})
    assert [(load.number, load.force) for load in run.asked_loads] == [
        (1, False), (2, False), (3, False), (3, True), (4, False)
    ]  # fmt: skip
    assert len({load.load_id for load in run.asked_loads}) == 5


def test_a_constructor_that_falls_silent_is_left_for_the_one_that_took_its_place(run, impatient):
    registry_run, second_run = ScriptedRun(), ScriptedRun()
    with (
        LinkServer(run, **SETTINGS) as first,
        LinkServer(second_run, **SETTINGS) as second,
        LinkServer(registry_run, **SETTINGS) as registry,
        proxied(first) as proxy,
    ):
        through = f"tcp://127.0.0.1:{proxy.address[1]}"
        registry_run.places = [Place(host="a", addresses=(through,))]
        with connect(url(registry), 1) as client:
            found = [contents(next(client)) for _ in range(3)]
            until_held(client, 2)
            proxy.swallow()
            found += [contents(next(client)) for _ in range(2)]
            # Until somebody takes the place, the rank comes back to the one that accepts and says nothing.
            noticed = threading.Timer(1.5, setattr, args=(registry_run, "places", [place_of(second)]))
            noticed.start()
            found += [contents(next(client)) for _ in range(4)]
            noticed.join()
    assert found == [contents(make_batch(step, 1)) for step in range(9)]
    assert second_run.stated(0)[0] == 0


def place_of(server):
    return Place(host="a", addresses=(server.addresses[-1],))


def test_a_load_on_a_connection_that_falls_silent_is_repeated_as_the_same_load(server, run, impatient):
    with proxied(server) as proxy, connect(f"tcp://127.0.0.1:{proxy.address[1]}?{url(server).split('?')[1]}") as client:
        next(client)
        proxy.swallow()
        healing = threading.Timer(2.5, proxy.forward)
        healing.start()
        client.load_state_dict({"step": 5})
        healing.join()
        assert (next(client).step, len(run.loads), run.generation) == (6, 1, 1)
        assert len(run.hellos) >= 2


def test_silence_is_noticed_within_seconds_of_what_was_promised(server, run):
    with proxied(server) as proxy:
        address = f"tcp://127.0.0.1:{proxy.address[1]}?{url(server).split('?')[1]}"
        with connect(address, prefetch=1, deadline_s=8.5) as client:
            next(client)
            until_held(client, 1)
            proxy.swallow()
            next(client)
            # Two seconds were agreed on, three more are waited; then the rank looks for the run again.
            with pytest.raises(DeadlineError, match=r"for step 2 of run r1; it waits for a connection to tcp://"):
                next(client)
            proxy.forward()
            assert next(client).step == 2


def test_a_long_wait_is_told_before_anything_else_gives_up(server, run, caplog, monkeypatch):
    heard(monkeypatch, "msd.client.remote")
    monkeypatch.setattr("msd.client.remote._WAIT_S", 0.05)
    run.change(ready=1)
    with msd.connect(url(server), rank=1, deadline_s=60.0, warn_s=0.3) as client, caplog.at_level(logging.WARNING):
        next(client)
        coming = threading.Timer(1.0, run.change, kwargs={"ready": 2})
        coming.start()
        assert next(client).step == 1
        coming.join()
    waits = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert len(waits) >= 2
    assert waits[0].startswith("rank 1 has waited 0.3")
    assert "s for step 1 of run r1; it waits for source 'slow'; it gives up after 60 s" in waits[0]


def test_a_run_that_resumed_is_told_to_a_rank_that_starts(server, run, caplog, monkeypatch):
    heard(monkeypatch, "msd.client.remote")
    run.change(origin="checkpoint ckpt, step 100", first_step=100)
    with caplog.at_level(logging.WARNING), connect(url(server)) as client:
        assert (client.next_step, client.generation) == (100, 0)
    assert "rank 0 starts at step 100 of generation 0 of run r1, from checkpoint ckpt, step 100" in caplog.text


def test_a_stranger_that_is_silent_does_not_keep_a_server_from_closing(run):
    with LinkServer(run, **SETTINGS) as server, raw_socket(server):
        began = time.monotonic()
    assert time.monotonic() - began < 20


def test_the_run_hears_how_long_a_loop_has_waited(run, server):
    run.change(ready=1)
    with connect(url(server)) as client:
        assert next(client).step == 0
        comes = threading.Timer(0.5, run.change, kwargs={"ready": 10})
        comes.start()
        assert next(client).step == 1
        next(client)
        next(client)
        assert client.waited_s >= 0.4
        until_held(client, 2)
    assert 0.4 <= run.waits[0] <= client.waited_s + 0.1
