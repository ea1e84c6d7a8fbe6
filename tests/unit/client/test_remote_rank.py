import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from link_run import SETTINGS, TOKEN, ScriptedRun, contents, heard, make_batch, position_after, short_folder, url

import msd
from msd.client import RankClient
from msd.client.link.address import Address, write_rendezvous
from msd.client.link.messages import Place
from msd.client.link.server import LinkServer
from msd.client.remote import SocketTransport
from msd.errors import (
    BadSampleRateError,
    ClosedError,
    ConfigError,
    DeadlineError,
    EngineError,
    StateError,
)


@pytest.fixture
def run():
    return ScriptedRun()


@pytest.fixture
def server(run):
    with short_folder() as folder, LinkServer(run, unix_path=str(folder / "link"), stall_s=20.0, **SETTINGS) as server:
        yield server


@pytest.fixture
def connect(server):
    """Connects ranks, and sees that nothing is left of them."""
    clients = []

    def connect_one(rank=0, *, address=None, deadline_s=20.0, prefetch=2):
        transport = SocketTransport(address or url(server), deadline_s=deadline_s, prefetch=prefetch)
        clients.append(RankClient(transport, rank=rank))
        return clients[-1]

    before = open_files()
    yield connect_one
    for client in clients:
        client.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("msd-rank")]
    for _ in range(200):
        if open_files() <= before:
            break
        time.sleep(0.05)
    assert open_files() <= before


def open_files():
    return len(os.listdir("/proc/self/fd"))


def steps(client, count):
    return [next(client).step for _ in range(count)]


@pytest.mark.parametrize("number", [0, 1], ids=["unix", "tcp"])
def test_a_rank_receives_its_batches_in_order_and_unchanged(connect, server, number):
    client = connect(1, address=url(server, number, run="r1"))
    assert client.mesh.as_dict() == {"dp": 2, "pp": 1, "cp": 1, "tp": 1}
    for step in range(5):
        assert contents(next(client)) == contents(make_batch(step, rank=1))


def test_msd_connect_reaches_a_run_by_its_address(server):
    with msd.connect(url(server), rank=1) as client:
        assert next(client).rank == 1


def test_two_ranks_at_once_receive_each_their_own(connect, run):
    run.tokens = 1 << 16
    clients = [connect(0), connect(1)]
    found = {0: [], 1: []}

    def loop(client):
        found[client.rank] += [contents(next(client)) for _ in range(20)]

    loops = [threading.Thread(target=loop, args=(client,)) for client in clients]
    for thread in loops:
        thread.start()
    for thread in loops:
        thread.join()
    for rank in (0, 1):
        assert found[rank] == [contents(make_batch(step, rank, tokens=1 << 16)) for step in range(20)]


def test_no_more_is_fetched_ahead_than_was_asked_for(connect, run):
    client = connect(prefetch=3)
    run.until(lambda: len(run.takes) == 3)
    assert run.takes == [(0, 0, 0, -1), (0, 0, 1, -1), (0, 0, 2, -1)]
    next(client)
    run.until(lambda: run.takes[3:] == [(0, 0, 3, -1)])
    next(client)
    run.until(lambda: run.takes[4:] == [(0, 0, 4, 0)])


def test_a_step_counts_as_taken_when_the_loop_asks_for_the_next_one(connect, run):
    run.ready = 1
    client = connect()
    next(client)
    run.until(lambda: run.takes == [(0, 0, 0, -1), (0, 0, 1, -1)])
    loop = threading.Thread(target=next, args=(client,))
    loop.start()
    run.until(lambda: run.takes[2:] == [(0, 0, 1, 0)])
    run.change(ready=2)
    loop.join()


def test_the_end_comes_after_what_was_fetched_and_may_be_asked_for_again(connect, run):
    run.end = 3
    client = connect()
    assert [batch.step for batch in client] == [0, 1, 2]
    assert list(client) == []
    run.change(end=4)
    assert [batch.step for batch in client] == [3]


def test_the_state_is_the_position_after_the_batch_handed_out_last(connect):
    client = connect()
    assert client.state_dict() == json.loads(position_after(-1))
    steps(client, 2)
    assert client.state_dict() == client.state_dict() == json.loads(position_after(1))


def test_a_load_drops_what_was_fetched_and_the_rank_goes_on_from_there(connect, run):
    client = connect()
    steps(client, 3)
    client.load_state_dict({"step": 10})
    assert client.state_dict() == json.loads(position_after(10, 1))
    batch = next(client)
    assert (batch.step, batch.generation) == (11, 1)
    client.load_state_dict({"step": 4})
    assert steps(client, 2) == [5, 6]
    assert len(run.loads) == 2


def test_a_load_is_answered_while_a_step_is_waited_for(connect, run):
    run.ready = 0
    client = connect()
    run.until(lambda: run.takes)
    run.change(ready=100)
    began = time.monotonic()
    client.load_state_dict({"step": 10})
    assert next(client).step == 11
    assert time.monotonic() - began < 10


def test_a_state_that_is_refused_leaves_the_rank_where_it_was(connect):
    client = connect()
    steps(client, 2)
    with pytest.raises(StateError, match="foreign"):
        client.load_state_dict({"kind": "foreign"})
    assert steps(client, 2) == [2, 3]


def test_a_rank_that_did_not_load_follows_with_its_next_request(connect, run):
    client = connect(prefetch=1)
    next(client)
    run.until(lambda: len(run.takes) == 2)
    run.change(generation=1, first_step=20)
    # One step had been fetched before anything was said of the move.
    assert [(batch.step, batch.generation) for batch in (next(client), next(client))] == [(1, 0), (20, 1)]


def test_a_rank_that_is_told_of_a_move_uses_nothing_older(connect, run, server):
    client = connect(prefetch=2)
    next(client)
    run.until(lambda: len(run.takes) == 3)
    run.change(generation=1, first_step=20)
    assert server.announce(run.moved(), wait_s=20.0) == []
    assert client.state_dict() == json.loads(position_after(19, 1))
    assert [(batch.step, batch.generation) for batch in (next(client), next(client))] == [(20, 1), (21, 1)]


def test_a_run_that_goes_back_to_an_older_generation_is_an_error(connect, run):
    run.generation = 3
    client = connect(prefetch=1)
    next(client)
    run.until(lambda: len(run.takes) == 2)
    run.change(generation=1)
    next(client)
    with pytest.raises(EngineError, match="rank 0 is in generation 3 and the run says that it has moved to 1"):
        next(client)


def test_a_wait_that_runs_out_names_rank_step_and_what_is_waited_for(connect, run, monkeypatch):
    monkeypatch.setattr("msd.client.remote._WAIT_S", 0.05)
    run.ready = 1
    client = connect(1, deadline_s=2.0)
    next(client)
    with pytest.raises(DeadlineError, match=r"rank 1 has waited 2 s for step 1 of run r1; it waits for source 'slow'"):
        next(client)
    run.change(ready=2)
    assert next(client).step == 1


def test_an_error_of_the_run_comes_after_what_was_fetched_and_is_asked_for_again(connect, run):
    client = connect()
    run.until(lambda: len(run.takes) == 2)
    run.change(error=BadSampleRateError("source 'web': 3 of 100 samples failed"))
    assert steps(client, 2) == [0, 1]
    for _ in range(2):
        with pytest.raises(BadSampleRateError, match="3 of 100"):
            next(client)
    run.change(error=None)
    assert next(client).step == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rank": 2}, ConfigError, "rank 2 is outside the mesh of 2 ranks"),
        ({"token": "no"}, EngineError, "refuses the token"),
        ({"run": "r2"}, EngineError, "a rank of run r2"),
    ],
)
def test_a_rank_that_is_refused_learns_why_at_once(server, changes, error, message):
    transport = SocketTransport(url(server, **{"token": TOKEN, **{k: v for k, v in changes.items() if k != "rank"}}))
    with pytest.raises(error, match=message):
        RankClient(transport, rank=changes.get("rank", 0))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("msd-rank")]


def test_numbers_that_cannot_be_used_are_refused():
    for bad in ({"prefetch": 0}, {"deadline_s": 0}, {"deadline_s": float("nan")}, {"warn_s": 0}):
        with pytest.raises(ConfigError, match="prefetch must be at least 1, deadline_s and warn_s above 0"):
            SocketTransport("tcp://h:1", **bad)


def test_one_link_serves_one_rank(server):
    transport = SocketTransport(url(server))
    with pytest.raises(EngineError, match="connect first"):
        transport.mesh  # noqa: B018
    with RankClient(transport, rank=0), pytest.raises(EngineError, match="serves rank 0; make another one for rank 1"):
        transport.connect(1)


def test_nobody_at_the_address_ends_the_wait_with_what_was_tried(caplog, monkeypatch):
    heard(monkeypatch, "msd.client.remote")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        DeadlineError, match=rf"to be connected; it waits for a connection to tcp://127.0.0.1:{port} \("
    ):
        RankClient(SocketTransport(f"tcp://127.0.0.1:{port}?token=secret", deadline_s=0.5), rank=0)
    assert "rank 0 cannot reach" in caplog.text
    assert "secret" not in caplog.text


def test_a_server_of_another_protocol_is_named_by_what_it_says():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.recv(4096)

        web = threading.Thread(target=answer)
        web.start()
        with pytest.raises(EngineError, match=r"does not speak the msd link: it began with b'HTTP/1.1 400"):
            RankClient(SocketTransport(f"msd://127.0.0.1:{listener.getsockname()[1]}", deadline_s=20.0), rank=0)
        web.join()


def test_a_run_that_is_not_ready_for_the_rank_is_asked_again(connect, run):
    run.not_welcome = "constructor c0 to be placed"
    with pytest.raises(DeadlineError, match="it waits for constructor c0 to be placed"):
        connect(deadline_s=0.7)
    opening = threading.Timer(0.2, run.change, kwargs={"not_welcome": None})
    opening.start()
    assert next(connect()).step == 0
    opening.join()


def test_the_file_of_a_run_is_waited_for(connect, server, tmp_path):
    path = tmp_path / "address.json"
    appearing = threading.Timer(0.3, write_rendezvous, args=(path, Address.parse(url(server))))
    appearing.start()
    assert next(connect(address=path.as_uri())).step == 0
    appearing.join()


def test_a_rank_goes_where_the_registry_says_and_prefers_its_own_host(connect, run, server):
    registry_run, elsewhere = ScriptedRun(), ScriptedRun()
    with LinkServer(registry_run, **SETTINGS) as registry, LinkServer(elsewhere, **SETTINGS) as other:
        here = socket.gethostname()
        registry_run.places = [
            Place(host="far-away", addresses=("unix:///there", other.addresses[0])),
            Place(host=here, addresses=("unix:///gone", server.addresses[1], server.addresses[0])),
        ]
        assert next(connect(address=url(registry))).step == 0
        assert (len(run.hellos), registry_run.hellos, elsewhere.hellos) == (1, [], [])
        registry_run.places = [Place(host="far-away", addresses=("unix:///there", other.addresses[0]))]
        assert next(connect(address=url(registry))).step == 0
        assert len(elsewhere.hellos) == 1
        registry_run.places = [Place(host="far-away", addresses=("unix:///there",))]
        with pytest.raises(DeadlineError, match="it is served on far-away, which cannot be reached from"):
            connect(address=url(registry), deadline_s=0.5)


def test_closing_says_goodbye_and_is_heard(connect, run):
    client = connect(1)
    next(client)
    client.close()
    client.close()
    assert (run.farewells, run.losses) == ([1], [])
    with pytest.raises(ClosedError):
        next(client)


def test_closing_says_goodbye_also_while_a_large_batch_is_on_its_way(connect, run):
    run.tokens = 1 << 20
    client = connect()
    run.until(lambda: run.takes)
    client.close()
    assert (run.farewells, run.losses) == ([0], [])


def test_closing_from_another_thread_ends_the_wait_of_the_loop(connect, run):
    run.ready = 0
    client = connect()
    closing = threading.Timer(0.2, client.close)
    closing.start()
    with pytest.raises(ClosedError, match="closed while it waited for step 0"):
        next(client)
    closing.join()


def run_python(program, **settings):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, **settings)


def test_a_process_that_ends_without_closing_is_not_held_and_counts_as_lost(server, run):
    program = f"import msd\nc = msd.connect({url(server)!r}, 0)\nprint(next(c).step, next(c).step)"
    ended = run_python(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0 1\n", "")
    run.until(lambda: run.losses == [0])


@pytest.mark.parametrize(
    "statement",
    ["from msd.client.remote import SocketTransport", "import msd; msd.connect", "import msd.client.link"],
)
def test_the_trainers_side_needs_numpy_and_the_standard_library_alone(statement):
    program = (
        f"{statement}\nimport sys\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    ended = run_python(program)
    # What Debian's Python loads for itself is not ours.
    found = {name for name in ended.stdout.split() if not name.startswith("_")} - {"sitecustomize", "usercustomize"}
    assert found == {"msd", "numpy"}, ended.stderr


def test_a_run_reached_over_the_link_loads_nothing_more(server):
    program = (
        f"import msd, sys\nwith msd.connect({url(server)!r}, 0) as client: next(client)\n"
        "heavy = {'distributed', 'dask', 'pandas', 'pyarrow', 'sklearn', 'PIL', 'tokenizers', 'msgspec', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run_python(program).stdout == "[]\n"
