"""A run that was started again, perhaps elsewhere, is found by every kind of address."""

import json
import os
import socket
import threading

import pytest
from link_run import SETTINGS, TOKEN, ScriptedRun, heard, url

from msd.client import RankClient
from msd.client.link.address import Address, kept_token, write_rendezvous
from msd.client.link.messages import NotYet
from msd.client.link.server import LinkServer
from msd.client.remote import SocketTransport
from msd.errors import ConfigError, DeadlineError, EngineError


@pytest.fixture
def run():
    return ScriptedRun()


def connect(address, rank=0, **options):
    return RankClient(SocketTransport(address, **{"deadline_s": 60.0, **options}), rank=rank)


def serve(handler, **changes):
    return LinkServer(handler, **{**SETTINGS, **changes})


def test_a_run_started_again_elsewhere_is_found_through_its_file(run, tmp_path):
    path, again = tmp_path / "run.json", ScriptedRun()
    first = serve(run)
    write_rendezvous(path, Address.parse(url(first, run="r1")))
    with connect(path.as_uri(), prefetch=1) as client:
        assert next(client).step == 0
        first.close()
        path.unlink()
        with serve(again, run="r2", token="another") as second:
            write_rendezvous(path, Address.parse(url(second, token="another", run="r2")))
            assert [next(client).step for _ in range(3)] == [1, 2, 3]
    assert again.hellos[0][1].run == "r1"


@pytest.mark.parametrize("what", ["token", "run"])
def test_a_file_that_is_a_moment_older_than_its_run_is_read_again(run, tmp_path, what, caplog, monkeypatch):
    heard(monkeypatch, "msd.client.remote")
    path = tmp_path / "run.json"
    with serve(run, **{what: "new"}) as server:
        write_rendezvous(path, Address.parse(url(server, **{"run": "r1", what: "old"})))
        rewriting = threading.Timer(
            0.5, write_rendezvous, args=(path, Address.parse(url(server, **{"run": "r1", what: "new"})))
        )
        rewriting.start()
        with connect(path.as_uri()) as client:
            assert next(client).step == 0
        rewriting.join()
        assert "it tries again" in caplog.text
        assert TOKEN not in caplog.text
        # An address that was given as such is not going to change.
        with pytest.raises(EngineError, match=r"take the (run's )?present address"):
            connect(url(server, **{"run": "r1", what: "old"}))


def test_a_name_is_looked_up_at_each_try_and_all_its_addresses_are_tried(run, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()
    first, looked_up = serve(run), []
    port, known = Address.parse(url(first)).port, {}

    def look_up(host, port, *arguments, **options):
        if host != "run.example":
            return found(host, port, *arguments, **options)
        looked_up.append(port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", at) for at in known["addresses"]]

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    known["addresses"] = [nobody, ("127.0.0.1", port)]
    query = url(first).partition("?")[2]
    with connect(f"msd://run.example:{port}?{query}", prefetch=1) as client:
        assert next(client).step == 0
        first.close()
        with serve(run) as second:
            known["addresses"] = [("127.0.0.1", port), ("127.0.0.1", Address.parse(url(second)).port)]
            assert [next(client).step for _ in range(3)] == [1, 2, 3]
    assert len(looked_up) >= 2


def test_a_rank_that_finds_nobody_names_the_addresses_the_run_and_its_step(run):
    constructor_run = ScriptedRun()
    constructor = serve(constructor_run)
    with serve(run) as registry:
        run.places = [place(constructor)]
        with connect(url(registry), deadline_s=1.5, prefetch=1) as client:
            next(client)
            constructor.close()
            client._transport._channel.abort()
            with pytest.raises(DeadlineError) as raised:
                [next(client) for _ in range(3)]
    said = str(raised.value)
    assert "rank 0 has waited 1.5 s for step" in said
    assert "of run r1; it waits for a connection to" in said
    for server in (registry, constructor):
        assert server.addresses[-1] in said
    assert TOKEN not in said


def place(server):
    from msd.client.link.messages import Place

    return Place(host="a", addresses=tuple(server.addresses))


def test_a_registry_that_has_no_place_yet_is_waited_for(run):
    constructor_run = ScriptedRun()
    with serve(run) as registry, serve(constructor_run) as constructor:
        run.places = NotYet(waits_for="the constructors to be placed")
        with pytest.raises(DeadlineError, match="it waits for the constructors to be placed"):
            connect(url(registry), deadline_s=1.5)
        placing = threading.Timer(0.5, setattr, args=(run, "places", [place(constructor)]))
        placing.start()
        with connect(url(registry)) as client:
            assert next(client).step == 0
        placing.join()
        assert (run.hellos, len(constructor_run.hellos)) == ([], 1)


@pytest.mark.parametrize("other", [{"run": "r0"}, {"token": "another"}], ids=["same token", "another token"])
def test_a_port_that_went_to_another_run_is_not_taken_for_the_constructor(run, other):
    stranger, constructor_run = ScriptedRun(), ScriptedRun()
    with serve(run) as registry, serve(stranger, **other) as stale, serve(constructor_run) as constructor:
        run.places = [place(stale)]
        with pytest.raises(DeadlineError, match="the run is not at tcp://"):
            connect(url(registry), deadline_s=1.0)
        noticed = threading.Timer(0.3, setattr, args=(run, "places", [place(constructor)]))
        noticed.start()
        with connect(url(registry)) as client:
            assert next(client).step == 0
        noticed.join()
    assert stranger.hellos == []


def test_a_token_is_made_up_once_and_kept_for_its_owner(tmp_path):
    path = tmp_path / "token"
    token = kept_token(path)
    assert len(token) == 32
    assert kept_token(path) == token
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["token"]
    path.write_text("of my own \n")
    assert kept_token(path) == "of my own"


@pytest.mark.parametrize(
    ("content", "message"), [(b" \n", "holds no token"), (b"\xff", "it is no text"), (None, "Is a directory")]
)
def test_a_file_without_a_token_is_refused(tmp_path, content, message):
    path = tmp_path / "token"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        kept_token(path)
    with pytest.raises(ConfigError, match="the token cannot be written to"):
        kept_token(tmp_path / "none" / "token")


def test_an_address_file_that_is_empty_is_one_that_is_not_there_yet(run, tmp_path):
    path = tmp_path / "run.json"
    path.touch()
    with serve(run) as server:
        writing = threading.Timer(0.3, path.write_text, args=(json.dumps({"address": url(server)}),))
        writing.start()
        with connect(path.as_uri()) as client:
            assert next(client).step == 0
        writing.join()
