import json
import os
import socket
import struct
import threading
import time

import pytest
from link_run import (
    SETTINGS,
    TOKEN,
    ScriptedRun,
    contents,
    heard,
    make_batch,
    position_after,
    raw_socket,
    short_folder,
    url,
)

from msd.client.link import conversation
from msd.client.link.address import Address
from msd.client.link.batches import decode
from msd.client.link.channel import Channel
from msd.client.link.frames import Kind, receive_frame, send_frame, set_stall
from msd.client.link.messages import Moved, Place
from msd.client.link.server import LinkServer
from msd.errors import BadSampleRateError, ConfigError, EngineError, StateError

TAKE = {"generation": 0, "step": 0, "taken_through": -1, "wait_s": 0.0}


@pytest.fixture
def run():
    return ScriptedRun()


@pytest.fixture
def server(run):
    with short_folder() as folder, LinkServer(run, unix_path=str(folder / "link"), stall_s=20.0, **SETTINGS) as server:
        yield server


@pytest.fixture
def opened(server):
    """Opens connections and closes them at the end."""
    channels = []

    def open_one(number=0, *, rank=None):
        channel = Channel(Address.parse(url(server, number)))
        channels.append(channel)
        channel.open(None)
        if rank is not None:
            assert channel.ask(Kind.HELLO, {"rank": rank, "client": "a"}).kind == Kind.WELCOME
        return channel

    yield open_one
    for channel in channels:
        channel.close()


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("msd-link")]


@pytest.mark.parametrize("number", [0, 1], ids=["unix", "tcp"])
def test_a_rank_says_hello_and_takes_its_steps(opened, run, number):
    channel = opened(number)
    assert channel.run == "r1"
    welcome = channel.ask(Kind.HELLO, {"rank": 1, "client": "a", "stated": None})
    assert welcome.header == {
        "id": 0, "session": 1, "mesh": {"dp": 2, "pp": 1, "cp": 1, "tp": 1}, "generation": 0, "first_step": 0,
        "position": position_after(-1), "deadline_s": run.deadline_s, "num_loads": 0, "origin": "",
    }  # fmt: skip
    for step in (0, 1, 0):
        frame = channel.ask(Kind.TAKE, {**TAKE, "step": step})
        assert contents(decode(frame.header, frame.body)) == contents(make_batch(step, rank=1))


def test_the_addresses_say_where_ranks_connect(server):
    unix, tcp = server.addresses
    assert unix.startswith("unix:///")
    assert tcp.startswith("tcp://127.0.0.1:")


def test_a_server_for_all_hosts_gives_the_name_of_its_own(run):
    with LinkServer(run, host="0.0.0.0", **SETTINGS) as server:
        assert server.addresses == [f"tcp://{socket.gethostname()}:{server.addresses[0].rsplit(':', 1)[1]}"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": "wrong"}, r"run r1 \(msd 0.0-test, link protocol 2.0\) refuses the token of a rank with msd"),
        ({"token": ""}, "refuses the token"),
    ],
)
def test_a_stranger_is_refused_with_what_was_found(server, changes, message):
    channel = Channel(Address.parse(url(server, **{"token": TOKEN, **changes})))
    with pytest.raises(EngineError, match=message):
        channel.open(None)
    channel.close()


def test_another_protocol_version_is_refused_with_both(server):
    with raw_socket(server) as sock:
        text = b'{"run":null,"token":"x","version":"9.9"}'
        sock.sendall(struct.pack(">4sBBHIQ", b"MSDL", 1, 0, Kind.OPEN, len(text), 0) + text)
        set_stall(sock, 20.0)
        header = receive_frame(sock).header
    assert header["error"] == "EngineError"
    assert "speaks link protocol 1.0, this one 2.0" in header["message"]


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    bytes(range(256)) * 40,
    struct.pack(">4sBBHIQ", b"MSDL", 2, 0, 1, 2**32 - 1, 0),
    struct.pack(">4sBBHIQ", b"MSDL", 2, 0, 1, 2, 2**60) + b"{}",
    struct.pack(">4sBBHIQ", b"MSDL", 2, 0, 1, 2, 0) + b"{}",
    struct.pack(">4sBBHIQ", b"MSDL", 2, 0, 1, 4, 0) + b"null",
    struct.pack(">4sBBHIQ", b"MSDL", 2, 0, Kind.TAKE, 2, 0) + b"{}",
]


@pytest.mark.parametrize("raw", GARBAGE)
def test_garbage_is_answered_in_words_and_leaves_the_others_served(server, opened, raw):
    neighbour = opened(rank=0)
    with raw_socket(server) as sock:
        sock.sendall(raw)
        set_stall(sock, 20.0)
        assert receive_frame(sock).header["error"] == "EngineError"
        assert sock.recv(1) == b""
    assert neighbour.ask(Kind.TAKE, TAKE).kind == Kind.BATCH


@pytest.mark.parametrize("raw", [b"", b"MSDL", struct.pack(">4sBBHIQ", b"MSDL", 2, 0, 1, 90, 0) + b'{"run":'])
def test_a_stranger_that_says_no_more_is_hung_up_on(server, opened, monkeypatch, raw):
    monkeypatch.setattr(conversation, "_OPEN_S", 0.2)
    with raw_socket(server) as sock:
        sock.sendall(raw)
        assert sock.recv(1) == b""
    assert opened(rank=0).ask(Kind.TAKE, TAKE).kind == Kind.BATCH


def test_who_has_not_said_hello_gets_nothing(opened, run):
    channel = opened()
    for kind, header in ((Kind.TAKE, TAKE), (Kind.LOAD, {"load_id": "a", "state": {}}), (Kind.BYE, {})):
        with pytest.raises(EngineError, match="a rank says hello before"):
            channel.ask(kind, header)
    assert (run.takes, run.loads, run.farewells) == ([], {}, [])


def test_a_request_that_makes_no_sense_is_refused_and_the_next_one_answered(opened):
    channel = opened(rank=0)
    for changes in ({"step": "three"}, {"step": None}, {"generation": True}):
        with pytest.raises(EngineError, match=r"sent a message whose '(step|generation)' should be int"):
            channel.ask(Kind.TAKE, {**TAKE, **changes})
    with pytest.raises(EngineError, match="does not know requests of kind 68"):
        channel.ask(Kind.BATCH, {})
    with pytest.raises(EngineError, match="rank 0 has said hello"):
        channel.ask(Kind.HELLO, {"rank": 1, "client": "a"})
    assert channel.ask(Kind.TAKE, TAKE).kind == Kind.BATCH


@pytest.mark.parametrize("error", [BadSampleRateError("too many"), StateError("not ours"), ConfigError("no such")])
def test_an_error_of_the_run_is_raised_in_the_rank_as_the_same_class(opened, run, error):
    run.error = error
    with pytest.raises(type(error), match=str(error)):
        opened(rank=0).ask(Kind.TAKE, TAKE)


def test_a_fault_in_the_run_reaches_the_rank_by_name(opened, run, caplog, monkeypatch):
    heard(monkeypatch, "msd.client.link.conversation")
    run.error = ZeroDivisionError("by zero")
    with pytest.raises(EngineError, match="the run failed with ZeroDivisionError: by zero"):
        opened(rank=0).ask(Kind.TAKE, TAKE)
    assert "the link to rank 0 failed" in caplog.text


def test_where_may_be_asked_before_hello(opened, run):
    run.places = [Place(host="a", addresses=("unix:///x", "tcp://a:1"))]
    assert opened().ask(Kind.WHERE, {"rank": 0}).header["places"] == [
        {"host": "a", "addresses": ["unix:///x", "tcp://a:1"]}
    ]
    with pytest.raises(ConfigError, match="rank 2 is outside the mesh"):
        opened().ask(Kind.WHERE, {"rank": 2})


def test_a_step_that_is_not_there_yet_is_waited_for(opened, run):
    run.ready = 0
    channel = opened(rank=0)
    frame = channel.ask(Kind.TAKE, {**TAKE, "wait_s": 0.05})
    assert (frame.kind, frame.header["waits_for"]) == (Kind.NOT_YET, "source 'slow'")
    channel.send(Kind.TAKE, {"id": 1, **TAKE, "wait_s": 20.0})
    run.until(lambda: run.takes)
    run.change(ready=1)
    assert channel.receive(20.0).kind == Kind.BATCH


def test_what_the_loop_took_is_heard_while_a_step_is_waited_for(opened, run):
    run.ready = 0
    channel = opened(rank=0)
    channel.send(Kind.TAKE, {"id": 1, **TAKE, "step": 5, "taken_through": 2, "wait_s": 20.0})
    channel.send(Kind.TAKEN, {"generation": 0, "taken_through": 3})
    run.until(lambda: run.takes == [(0, 0, 5, 2), (0, 0, 5, 3)])


@pytest.mark.parametrize("farewell", [True, False])
def test_a_rank_that_leaves_is_noticed_while_its_step_is_waited_for(opened, run, farewell):
    run.ready = 0
    channel = opened(rank=1)
    channel.send(Kind.TAKE, {"id": 1, **TAKE, "wait_s": 30.0})
    run.until(lambda: run.takes)
    if farewell:
        channel.send(Kind.BYE, {"id": 2})
    else:
        channel.close()
    run.until(lambda: run.farewells or run.losses, timeout_s=10.0)
    assert (run.farewells, run.losses) == (([1], []) if farewell else ([], [1]))


def test_a_rank_that_stops_reading_is_given_up_and_the_others_are_served(run):
    run.tokens = 4 << 20
    with LinkServer(run, stall_s=1.0, **SETTINGS) as server:
        slow, other = (Channel(Address.parse(url(server))) for _ in range(2))
        for rank, channel in enumerate((slow, other)):
            channel.open(None)
            channel.ask(Kind.HELLO, {"rank": rank, "client": "a"})
        slow.send(Kind.TAKE, {"id": 1, **TAKE})
        assert other.ask(Kind.TAKE, TAKE).kind == Kind.BATCH
        run.until(lambda: run.losses == [0])
        slow.close()
        other.close()


def test_a_move_is_announced_and_confirmed(opened, run, server):
    idle, waiting, deaf = opened(rank=0), opened(rank=1), opened(rank=0)
    run.change(ready=0)
    waiting.send(Kind.TAKE, {"id": 1, **TAKE, "wait_s": 30.0})
    run.until(lambda: run.takes)
    moved = Moved(generation=1, first_step=7, position=position_after(6, 1))

    def confirm(channel):
        frame = channel.receive(20.0)
        assert (frame.kind, frame.header) == (
            Kind.MOVED,
            {"generation": 1, "first_step": 7, "position": moved.position},
        )
        channel.send(Kind.MOVED_SEEN, {"generation": 1})

    confirming = [threading.Thread(target=confirm, args=(channel,)) for channel in (idle, waiting)]
    for thread in confirming:
        thread.start()
    assert server.announce(moved, wait_s=2.0) == [0]
    for thread in confirming:
        thread.join()
    began = time.monotonic()
    deaf.send(Kind.MOVED_SEEN, {"generation": 1})
    assert server.announce(moved, wait_s=20.0) == []
    assert time.monotonic() - began < 10


def test_closing_ends_every_thread_and_removes_the_socket(run):
    with short_folder() as folder:
        path = folder / "link"
        server = LinkServer(run, unix_path=str(path), **SETTINGS)
        run.ready = 0
        channels = [Channel(Address.parse(url(server, number))) for number in (0, 1)]
        for rank, channel in enumerate(channels):
            channel.open(None)
            channel.ask(Kind.HELLO, {"rank": rank, "client": "a"})
            channel.send(Kind.TAKE, {"id": 1, **TAKE, "wait_s": 30.0})
        run.until(lambda: len(run.takes) == 2)
        server.close()
        server.close()
        assert not path.exists()
        assert not threads()
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            Channel(Address.parse(url(server)))
        for channel in channels:
            with pytest.raises(ConnectionError):
                channel.receive(20.0)
            channel.close()
        assert sorted(run.losses) == [0, 1]


def test_what_a_dead_server_left_is_removed_and_a_living_one_is_respected(run):
    with short_folder() as folder:
        path = str(folder / "link")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        with LinkServer(run, unix_path=path, **SETTINGS) as server:
            Channel(Address.parse(url(server))).close()
            with pytest.raises(EngineError, match="in use by a server that is alive"):
                LinkServer(run, unix_path=path, **SETTINGS)
        (folder / "file").write_text(json.dumps("kept"), encoding="utf-8")
        with pytest.raises(EngineError, match="exists and is no socket"):
            LinkServer(run, unix_path=str(folder / "file"), **SETTINGS)
        assert os.listdir(folder) == ["file"]


def test_a_path_too_long_for_a_socket_is_refused(run, tmp_path):
    with pytest.raises(EngineError, match="the system allows 107: choose a shorter directory"):
        LinkServer(run, unix_path=str(tmp_path / ("x" * 120)), **SETTINGS)
    assert not threads()


def test_frames_are_not_taken_with_a_body_from_a_rank(server, opened):
    channel = opened(rank=0)
    send_frame(channel._sock, Kind.TAKE, {"id": 1, **TAKE}, [memoryview(b"body")])
    with pytest.raises(EngineError, match="a body of 4 bytes; at most 67108864 and 0"):
        channel.ask(Kind.TAKE, TAKE)
