import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from link_run import SETTINGS, ScriptedRun, contents, make_batch, position_after, short_folder, until_held, url

from msd.client import RankClient
from msd.client.link.address import Address, write_rendezvous
from msd.client.link.channel import Channel
from msd.client.link.frames import Kind
from msd.client.link.messages import Place, Stated
from msd.client.link.server import LinkServer
from msd.client.remote import SocketTransport
from msd.errors import ClosedError, DeadlineError, EngineError

TOKENS = 1 << 16


@pytest.fixture
def run():
    return ScriptedRun(tokens=TOKENS)


@pytest.fixture
def server(run):
    with LinkServer(run, stall_s=20.0, **SETTINGS) as server:
        yield server


def expected(step, rank=0):
    return contents(make_batch(step, rank, tokens=TOKENS))


class Proxy:
    """Stands between a rank and a server; cuts the n-th connection after so many bytes to the rank."""

    def __init__(self, server, cuts):
        self.target = server.addresses[-1].removeprefix("tcp://").split(":")
        self.cuts = list(cuts)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.1)
        self.is_closed = False
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}?{url(server).partition('?')[2]}"

    def accept(self):
        while not self.is_closed:
            try:
                near, _ = self.listener.accept()
            except TimeoutError:
                continue
            far = socket.create_connection((self.target[0], int(self.target[1])))
            limit = self.cuts.pop(0) if self.cuts else None
            for source, sink, most in ((near, far, None), (far, near, limit)):
                self.threads.append(threading.Thread(target=self.pass_on, args=(source, sink, most)))
                self.threads[-1].start()
        self.listener.close()

    def pass_on(self, source, sink, most):
        with source:
            while most is None or most > 0:
                try:
                    chunk = source.recv(65536 if most is None else min(most, 65536))
                    sink.sendall(chunk)
                except OSError:
                    break
                if not chunk:
                    break
                most = None if most is None else most - len(chunk)
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.is_closed = True
        for thread in self.threads:
            thread.join()


def test_a_connection_cut_in_the_middle_of_a_frame_is_made_again_and_no_byte_differs(server, run):
    size = len(b"".join(run.take(0, 1, 0, 0, -1, 0.0).parts))
    run.takes.clear()
    cuts = [10, 100, 400, int(0.5 * size), int(1.7 * size), int(2.2 * size)]
    with Proxy(server, cuts) as proxy, RankClient(SocketTransport(proxy.url, deadline_s=30.0), rank=0) as client:
        assert [contents(next(client)) for _ in range(12)] == [expected(step) for step in range(12)]
        assert not proxy.cuts
    assert run.stated(0) is None
    # Each time the same client says where its loop stands, once it has heard that it is welcome.
    assert len(set(run.clients)) == 1
    stated = [at for _, at in run.hellos if at is not None]
    assert len(stated) >= 3
    assert [at.next_step for at in stated] == sorted(at.next_step for at in stated)
    assert all(at.position == position_after(at.next_step - 1) for at in stated)
    # What had arrived is not fetched again.
    fetched = [step for _, _, step, _ in run.takes]
    assert fetched == sorted(fetched)


def test_what_was_fetched_is_handed_out_while_the_run_is_away(run):
    server = LinkServer(run, **SETTINGS)
    address = Address.parse(url(server))
    with RankClient(SocketTransport(url(server), deadline_s=30.0, prefetch=3), rank=0) as client:
        next(client)
        until_held(client, 3)
        server.close()
        assert [next(client).step for _ in range(3)] == [1, 2, 3]
        with LinkServer(run, port=address.port, **SETTINGS):
            assert contents(next(client)) == expected(4)
            assert run.hellos[1:] == [
                (0, Stated(run="r1", generation=0, next_step=4, num_loads=0, position=position_after(3)))
            ]


def test_a_run_that_ends_says_so_and_what_was_fetched_is_handed_out_first(server):
    with RankClient(SocketTransport(url(server), deadline_s=30.0), rank=0) as client:
        next(client)
        until_held(client, 2)
        server.close(ClosedError("the run was closed"))
        assert [next(client).step for _ in range(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(ClosedError, match="the run was closed"):
                next(client)
        assert client.state_dict() == json.loads(position_after(2))


def test_a_rank_that_waits_for_a_step_hears_at_once_that_the_run_ends(server, run):
    run.change(ready=1)
    with RankClient(SocketTransport(url(server), deadline_s=30.0), rank=0) as client:
        next(client)
        closing = threading.Timer(0.3, server.close, [EngineError("the planner is gone")])
        closing.start()
        with pytest.raises(EngineError, match="the planner is gone"):
            next(client)
        closing.join()


def test_a_rank_that_does_not_listen_does_not_hold_up_the_end(run, monkeypatch):
    monkeypatch.setattr("msd.client.link.server._FAREWELL_S", 0.2)
    run.tokens = 1 << 22
    with LinkServer(run, **SETTINGS) as server, contextlib.closing(Channel(Address.parse(url(server)))) as channel:
        channel.open(None)
        channel.ask(Kind.HELLO, {"rank": 0, "client": "a", "stated": None})
        channel.send(Kind.TAKE, {"id": 1, "generation": 0, "step": 0, "taken_through": -1, "wait_s": 1.0})
        began = time.monotonic()
        server.close(ClosedError("the run was closed"))
        assert time.monotonic() - began < 10.0
    assert run.losses == [0]


def test_a_rank_takes_the_deadline_of_the_run_unless_it_has_its_own(server, run):
    run.change(ready=1, deadline_s=0.5)
    with RankClient(SocketTransport(url(server)), rank=0) as client:
        next(client)
        with pytest.raises(DeadlineError, match=r"rank 0 has waited 0\.5 s for step 1"):
            next(client)
    with RankClient(SocketTransport(url(server), deadline_s=0.7), rank=1) as client:
        next(client)
        with pytest.raises(DeadlineError, match=r"rank 1 has waited 0\.7 s for step 1"):
            next(client)


def test_a_run_that_stays_away_ends_the_wait(run):
    server = LinkServer(run, **SETTINGS)
    with RankClient(SocketTransport(url(server), deadline_s=1.0, prefetch=1), rank=0) as client:
        next(client)
        until_held(client, 1)
        server.close()
        next(client)
        with pytest.raises(
            DeadlineError, match=r"rank 0 has waited 1 s for step 2 of run r1; it waits for a connection to tcp://"
        ):
            next(client)


@pytest.fixture
def other_run(run):
    """Takes the place of the run that a rank is connected to, and yields with a rank that has two steps at hand."""
    server = LinkServer(run, **SETTINGS)
    other, port = ScriptedRun(tokens=TOKENS), Address.parse(url(server)).port
    with RankClient(SocketTransport(url(server, run="r1"), deadline_s=30.0, prefetch=1), rank=0) as client:
        next(client)
        until_held(client, 1)
        server.close()
        with LinkServer(other, port=port, **{**SETTINGS, "run": "r2"}):
            yield other, client


def test_another_run_at_the_address_hears_of_ours_and_may_refuse(other_run):
    other, client = other_run
    other.only_run = "r2"
    next(client)
    with pytest.raises(EngineError, match=r"a rank of run r1 is not of run r2"):
        next(client)


def test_a_run_started_again_may_go_on_where_its_ranks_stand(other_run):
    other, client = other_run
    found = [contents(next(client)) for _ in range(5)]
    assert found == [expected(step) for step in range(1, 6)]
    assert other.hellos[0][1].run == "r1"
    assert other.takes[0][2] == 2  # What was fetched before is not fetched again.


def test_a_rank_asks_anew_where_it_is_served_when_its_constructor_is_gone(run):
    registry_run, second = ScriptedRun(), ScriptedRun(tokens=TOKENS)
    first_server = LinkServer(run, **SETTINGS)
    with LinkServer(registry_run, **SETTINGS) as registry, LinkServer(second, **SETTINGS) as second_server:
        registry_run.places = [Place(host="a", addresses=tuple(first_server.addresses))]
        with RankClient(SocketTransport(url(registry), deadline_s=30.0), rank=1) as client:
            next(client)
            registry_run.places = [Place(host="a", addresses=(*first_server.addresses, *second_server.addresses))]
            first_server.close()
            assert [contents(next(client)) for _ in range(5)] == [expected(step, 1) for step in range(1, 6)]
        assert second.stated(0)[0] == 0


def test_a_load_that_is_cut_off_is_repeated_as_the_same_load(run):
    server = LinkServer(run, **SETTINGS)
    is_cut, answer = threading.Event(), run.load

    def load_then_die(rank, session, load):
        moved = answer(rank, session, load)
        if not is_cut.is_set():
            is_cut.set()
            for conversation in list(server._conversations):
                conversation.abort()
        return moved

    run.load = load_then_die
    with server, RankClient(SocketTransport(url(server), deadline_s=30.0), rank=0) as client:
        next(client)
        client.load_state_dict({"step": 5})
        assert is_cut.is_set()
        assert (next(client).step, len(run.loads), run.generation, len(run.hellos)) == (6, 1, 1, 2)


def test_a_run_that_falls_silent_is_left_for_a_new_connection(server, run, monkeypatch):
    monkeypatch.setattr("msd.client.remote._WAIT_S", 0.1)
    monkeypatch.setattr("msd.client.remote._SILENCE_S", 1.0)
    silent, answer = threading.Event(), run.take

    def hang_once(*arguments):
        if arguments[3] == 2 and not silent.is_set():
            silent.set()
            run.until(lambda: len(run.hellos) == 2)
        return answer(*arguments)

    run.take = hang_once
    with RankClient(SocketTransport(url(server), deadline_s=30.0), rank=0) as client:
        assert [contents(next(client)) for _ in range(4)] == [expected(step) for step in range(4)]
    assert silent.is_set()
    assert run.stated(1) == (0, 2)


SERVE = """
import sys, time
from pathlib import Path
from link_run import SETTINGS, ScriptedRun, url
from msd.client.link.address import Address, write_rendezvous
from msd.client.link.server import LinkServer
folder = Path(sys.argv[1])
with LinkServer(ScriptedRun(tokens=int(sys.argv[2])), unix_path=str(folder / "link"), **SETTINGS) as server:
    write_rendezvous(folder / "address", Address.parse(url(server)))
    print("serving", flush=True)
    sys.stdin.read()
"""


def start_server(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(TOKENS)],
        cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "serving\n"
    return process


def end_server(process):
    process.kill()
    process.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_server_process_that_dies_is_followed_by_the_next_one(how, monkeypatch):
    monkeypatch.setattr("msd.client.remote._WAIT_S", 0.1)
    monkeypatch.setattr("msd.client.remote._SILENCE_S", 0.5)
    monkeypatch.setattr("msd.client.link.channel.STALL_S", 0.5)
    with short_folder() as folder:
        first = start_server(folder)
        client = RankClient(SocketTransport((folder / "address").as_uri(), deadline_s=60.0), rank=0)
        try:
            found = [contents(next(client)) for _ in range(3)]
            first.send_signal(how)
            if how == signal.SIGSTOP:
                (folder / "link").unlink()
            second = start_server(folder)
            try:
                found += [contents(next(client)) for _ in range(6)]
            finally:
                client.close()
                end_server(second)
        finally:
            client.close()
            end_server(first)
    assert found == [expected(step) for step in range(9)]


def test_positions_are_those_of_the_undisturbed_run(server, run):
    with (
        Proxy(server, [3 * TOKENS]) as proxy,
        RankClient(SocketTransport(proxy.url, deadline_s=30.0), rank=0) as client,
    ):
        for step in range(4):
            next(client)
            assert client.state_dict() == {"step": step, "generation": 0}


def test_the_address_file_is_read_again_for_every_connection(run, tmp_path):
    path = tmp_path / "address"
    first, second = LinkServer(run, **SETTINGS), LinkServer(run, **SETTINGS)
    write_rendezvous(path, Address.parse(url(first)))
    with second, RankClient(SocketTransport(path.as_uri(), deadline_s=30.0), rank=0) as client:
        next(client)
        write_rendezvous(path, Address.parse(url(second)))
        first.close()
        assert [next(client).step for _ in range(4)] == [1, 2, 3, 4]
