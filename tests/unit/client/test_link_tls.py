"""The link with TLS: who has no certificate of the run's CA hears nothing, is told why, and disturbs nobody."""

import contextlib
import logging
import socket
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from link_run import SETTINGS, ScriptedRun, contents, heard, make_batch, raw_socket, short_folder, url

from msd.client import RankClient
from msd.client.link import conversation, reach, tls
from msd.client.link.address import Address
from msd.client.link.batches import decode
from msd.client.link.certificates import Certificates, certificates_of
from msd.client.link.channel import Channel
from msd.client.link.frames import Kind, receive_frame, send_frame, set_stall
from msd.client.link.server import LinkServer
from msd.client.link.stream import ready
from msd.client.remote import SocketTransport
from msd.errors import ConfigError, EngineError

TAKE = {"generation": 0, "step": 0, "taken_through": -1, "wait_s": 0.0}


@pytest.fixture
def ours(certificates) -> Certificates:
    found = certificates_of(certificates("run"))
    assert found is not None
    return found


@pytest.fixture
def run():
    return ScriptedRun()


@pytest.fixture
def server(run, ours):
    with (
        short_folder() as folder,
        LinkServer(run, unix_path=str(folder / "link"), stall_s=20.0, certificates=ours, **SETTINGS) as server,
    ):
        yield server


def tcp(server: LinkServer) -> str:
    return url(server, -1)


@contextlib.contextmanager
def opened(server: LinkServer, certificates: Certificates | None, number: int = -1):
    channel = Channel(Address.parse(url(server, number)), certificates)
    try:
        channel.open()
        yield channel
    finally:
        channel.close()


def hear(server: LinkServer, context: ssl.SSLContext) -> bytes:
    """Return what a server says to somebody who shakes hands and says no more."""
    with raw_socket(server) as sock, context.wrap_socket(sock, server_hostname="localhost") as encrypted:
        encrypted.settimeout(20)
        return encrypted.recv(1)


def is_served(server: LinkServer, ours: Certificates, rank: int = 0) -> bool:
    with opened(server, ours) as channel:
        channel.ask(Kind.HELLO, {"rank": rank, "client": "a"})
        frame = channel.ask(Kind.TAKE, TAKE)
        return contents(decode(frame.header, frame.body)) == contents(make_batch(0, rank=rank))


def test_the_address_says_tls_and_batches_of_any_size_arrive_as_they_are(run, server, ours):
    run.tokens = 1 << 20
    unix, tcp = server.addresses
    assert unix.startswith("unix:///")
    assert tcp.startswith("tls://127.0.0.1:")
    with RankClient(SocketTransport(url(server, 1), deadline_s=30.0, certificates=ours), rank=1) as client:
        for step in range(3):
            assert contents(next(client)) == contents(make_batch(step, rank=1, tokens=1 << 20))


def test_the_unix_socket_is_its_owners_alone_and_needs_no_certificate(server):
    path = Path(Address.parse(server.addresses[0]).path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with opened(server, None, 0) as channel:
        assert channel.ask(Kind.HELLO, {"rank": 0, "client": "a"}).kind == Kind.WELCOME


def test_a_socket_that_another_account_made_is_not_spoken_to(server, monkeypatch):
    path = Address.parse(server.addresses[0]).path
    assert reach._is_ours(path)
    assert not reach._is_ours(f"{path}-none")
    for uid, made_by, is_ours in ((4711, 4712, False), (4711, 4711, True), (4711, 0, True), (0, 4712, True)):
        with monkeypatch.context() as patch:
            patch.setattr(reach.os, "geteuid", lambda uid=uid: uid)
            patch.setattr(reach.os, "stat", lambda path, made_by=made_by: SimpleNamespace(st_uid=made_by))
            found = reach._is_ours(path)
        assert found is is_ours


def test_a_rank_without_certificates_does_not_even_dial(server):
    with pytest.raises(ConfigError, match=r"served with TLS alone.*MSD_TLS_CA, MSD_TLS_CERT, MSD_TLS_KEY"):
        Channel(Address.parse(tcp(server)))


def test_one_that_dials_in_the_clear_is_told_so_in_the_clear(server, ours):
    """So does a rank with an `msd://` address and no certificates."""
    channel = Channel(replace(Address.parse(tcp(server)), is_tls=False))
    with pytest.raises(EngineError, match="run r1 is served with TLS alone; name the CA of the run"):
        channel.open()
    channel.close()
    assert is_served(server, ours)


def test_a_client_without_a_certificate_is_refused_and_the_run_goes_on(server, ours, certificates):
    context = ssl.create_default_context(cafile=certificates("run")["ca"])
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.maximum_version = version
        with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"):
            hear(server, context)
    assert is_served(server, ours)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ca": "other"}, r"the certificate of tls://127.0.0.1:\d+ is not signed by .*; name the CA of this run"),
        ({"certificate": "other", "key": "other"}, "refuses us: the certificate .* is not signed by the CA of the run"),
        ({"certificate": "other"}, "is not the key of .*; name the two that were made together"),
    ],
    ids=["another CA is trusted", "a certificate of another CA", "another key"],
)
def test_what_does_not_fit_ends_in_one_line_at_once(server, ours, certificates, changes, message):
    wrong = certificates_of(
        {**certificates("run"), **{name: certificates(kind)[name] for name, kind in changes.items()}}
    )
    began = time.monotonic()
    with pytest.raises(ConfigError, match=message) as raised:
        RankClient(SocketTransport(tcp(server), deadline_s=60.0, certificates=wrong), rank=0)
    assert time.monotonic() - began < 15
    assert "\n" not in str(raised.value)
    assert is_served(server, ours)


def test_an_expired_certificate_is_told_apart_on_either_side(run, server, ours, certificates, monkeypatch):
    expired = certificates_of(certificates("expired"))
    assert expired is not None
    with pytest.raises(ConfigError, match="has expired; have another made"):
        LinkServer(run, certificates=expired, **SETTINGS)
    # It was good when the run was started.
    monkeypatch.setattr(tls, "check", lambda certificates: None)
    with (
        LinkServer(run, certificates=expired, **SETTINGS) as late,
        pytest.raises(ConfigError, match="has expired"),
        opened(late, expired),
    ):
        pass
    lenient = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lenient.check_hostname, lenient.verify_mode = False, ssl.CERT_NONE
    lenient.load_cert_chain(expired.certificate, expired.key)
    with pytest.raises(ssl.SSLError):
        hear(server, lenient)
    assert is_served(server, ours)


def test_a_rank_with_certificates_speaks_to_nobody_in_the_clear(run, ours):
    with LinkServer(run, **SETTINGS) as plain:
        for address in (tcp(plain), tcp(plain).replace("tcp://", "msd://")):
            with pytest.raises(ConfigError, match="is served without TLS, and this side has certificates"):
                Channel(Address.parse(address), ours)
        with opened(plain, None) as channel:
            assert channel.run == "r1"


def test_files_that_are_missing_or_no_certificates_are_named(ours, tmp_path):
    for name in ("ca", "certificate", "key"):
        with pytest.raises(ConfigError, match=r"none\.pem cannot be read \(No such file or directory\)"):
            tls.client_context(replace(ours, **{name: str(tmp_path / "none.pem")}))
    (tmp_path / "text.pem").write_text("hello")
    for name in ("ca", "certificate", "key"):
        with pytest.raises(ConfigError, match=r"text\.pem.* in PEM"):
            tls.client_context(replace(ours, **{name: str(tmp_path / "text.pem")}))


def test_a_silent_or_slow_peer_holds_up_nobody_and_is_dropped(run, ours, monkeypatch):
    monkeypatch.setattr(conversation, "_OPEN_S", 1.0)
    with LinkServer(run, certificates=ours, **SETTINGS) as server, contextlib.ExitStack() as open_:
        silent = [open_.enter_context(raw_socket(server)) for _ in range(20)]
        slow = open_.enter_context(raw_socket(server))
        slow.sendall(b"\x16\x03\x01")
        began = time.monotonic()
        assert is_served(server, ours)
        assert time.monotonic() - began < 5
        for sock in (*silent, slow):
            sock.settimeout(15)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_tokens_are_compared_in_constant_time_whatever_was_sent(run, monkeypatch):
    compared = []
    original = conversation.hmac.compare_digest
    monkeypatch.setattr(conversation.hmac, "compare_digest", lambda *both: compared.append(both) or original(*both))
    with LinkServer(run, **SETTINGS) as server:
        for token in ("", "open", "\ud800", "x" * 1000):
            channel = Channel(replace(Address.parse(tcp(server)), token=token))
            with pytest.raises(EngineError, match="refuses the token of a rank"):
                channel.open()
            channel.close()
    assert len(compared) == 4


def test_a_connection_too_many_is_turned_away_and_those_let_in_are_not_counted(run, monkeypatch):
    monkeypatch.setattr("msd.client.link.server._MOST_STRANGERS", 3)
    with LinkServer(run, **SETTINGS) as server, contextlib.ExitStack() as open_:
        known = [open_.enter_context(opened(server, None)) for _ in range(5)]
        strangers = [open_.enter_context(raw_socket(server)) for _ in range(3)]
        with raw_socket(server) as one_more:
            one_more.settimeout(20)
            assert one_more.recv(1) == b""
        for sock in strangers:
            sock.close()
        assert known[0].ask(Kind.HELLO, {"rank": 0, "client": "a"}).kind == Kind.WELCOME
        for _ in range(100):
            with contextlib.suppress(ConnectionError), opened(server, None):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("nobody is let in any more")


def test_who_trickles_the_first_message_is_dropped_at_the_same_deadline(run, monkeypatch):
    monkeypatch.setattr(conversation, "_OPEN_S", 1.0)
    with LinkServer(run, **SETTINGS) as server, raw_socket(server) as sock:
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for byte in b"MSDL\x02\x00\x00\x01" * 10:
                sock.sendall(bytes([byte]))
                time.sleep(0.3)
        assert time.monotonic() - began < 10


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(ours, monkeypatch):
    monkeypatch.setattr("msd.client.link.channel.OPEN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            Channel(Address(host="127.0.0.1", port=listener.getsockname()[1]), ours)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("host", "kind", "name", "is_named"),
    [
        ("localhost", "DNS", "localhost", True),
        ("Node1.Cluster.", "DNS", "node1.cluster", True),
        ("node1.cluster", "DNS", "*.cluster", True),
        ("a.node1.cluster", "DNS", "*.cluster", False),
        ("cluster", "DNS", "*.cluster", False),
        ("node1.cluster", "DNS", "*", False),
        ("evilcluster", "DNS", "cluster", False),
        ("127.0.0.1", "IP Address", "127.0.0.1", True),
        ("::1", "IP Address", "0:0:0:0:0:0:0:1", True),
        ("127.0.0.1", "DNS", "127.0.0.1", False),
        ("127.0.0.2", "IP Address", "127.0.0.1", False),
        ("node1", "IP Address", "127.0.0.1", False),
    ],
)
def test_names_are_compared_label_by_label(host, kind, name, is_named):
    assert tls._is_named(host, kind, name) is is_named


def test_a_certificate_with_names_is_good_for_them_alone_and_one_without_for_every_host(
    run, server, ours, certificates
):
    port = Address.parse(server.addresses[1]).port
    for host in ("127.0.0.1", "localhost"):
        Channel(Address(host=host, port=port), ours).close()
    said = r"is of localhost, 127.0.0.1, .* not of 127.0.0.2; dial one of these names"
    # What listens at 127.0.0.1 hears of what is sent to it under another name.
    with raw_socket(server) as sock, pytest.raises(ConfigError, match=said):
        tls.to_run(sock, ours, "127.0.0.2", "tls://127.0.0.2:1", limit_s=20.0)
    nameless = certificates_of(certificates("any host"))
    assert nameless is not None
    with LinkServer(run, certificates=nameless, **SETTINGS) as other:
        tls.to_run(raw_socket(other), nameless, "127.0.0.2", "tls://127.0.0.2:1", limit_s=20.0).close()


def test_one_thread_sends_while_another_one_waits(server, ours):
    with opened(server, ours) as channel:
        channel.ask(Kind.HELLO, {"rank": 0, "client": "a"})
        found = []
        thread = threading.Thread(target=lambda: found.append(channel.receive(20.0)))
        thread.start()
        time.sleep(0.2)
        channel.send(Kind.TAKE, {"id": 1, **TAKE})
        thread.join(20)
        assert found[0].kind == Kind.BATCH


def encrypted_pair(ours: Certificates):
    near, far = socket.socketpair()
    context, found = tls.server_context(ours), []
    thread = threading.Thread(target=lambda: found.append(tls.to_rank(far, context, limit_s=20.0)))
    thread.start()
    client = tls.to_run(near, ours, "localhost", "here", limit_s=20.0)
    thread.join()
    return client, found[0]


def test_frames_that_arrive_together_are_all_seen(ours):
    """What is decrypted already is not on the socket any more: to poll that would wait for ever."""
    client, served = encrypted_pair(ours)
    set_stall(client, 20.0)
    for number in range(3):
        send_frame(served, Kind.NOT_YET, {"number": number})
    time.sleep(0.1)
    numbers = []
    while ready(client, timeout_s=0.2):
        numbers.append(receive_frame(client).header["number"])
    assert numbers == [0, 1, 2]
    assert ready(client, timeout_s=0.0) == set()
    served.close()
    assert ready(client, timeout_s=5.0)
    with pytest.raises(ConnectionResetError):
        receive_frame(client)
    client.close()


def test_what_is_changed_on_the_way_ends_the_connection_and_is_handed_to_nobody(ours):
    client, served = encrypted_pair(ours)
    client._sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    set_stall(served, 5.0)
    with pytest.raises(ConnectionResetError, match="not TLS of this connection"):
        receive_frame(served)
    client.close()
    served.close()


def test_renewed_files_count_without_a_start_of_the_run_and_broken_ones_do_not(
    run, certificates, tmp_path, caplog, monkeypatch
):
    paths = {name: tmp_path / name for name in ("ca", "certificate", "key")}

    def put(kind: str) -> None:
        for name, path in paths.items():
            path.write_bytes(Path(certificates(kind)[name]).read_bytes())

    put("run")
    first, second = (certificates_of(certificates(kind)) for kind in ("run", "other"))
    with LinkServer(run, certificates=certificates_of(paths), **SETTINGS) as server:
        with opened(server, first):
            pass
        put("other")
        with opened(server, second):
            pass
        paths["key"].write_text("half a fi")
        heard(monkeypatch, "msd.client.link.certificates")
        caplog.set_level(logging.WARNING)
        with opened(server, second):
            pass
        assert "used as they were read before" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ca": "a"}, r"security\['certificate'\], security\['key'\] not set; name all three"),
        ({}, "not set"),
        ({"ca": "a", "cert": "b", "key": "c"}, "unknown key 'cert'; the keys are ca, certificate, key"),
        ("certificates", "takes a mapping of ca, certificate, key to files, got str"),
    ],
)
def test_half_of_what_is_needed_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        certificates_of(given)


def test_the_environment_names_certificates_and_half_of_them_is_refused(monkeypatch):
    assert certificates_of() is None
    monkeypatch.setenv("MSD_TLS_CA", "/a")
    with pytest.raises(ConfigError, match="MSD_TLS_CERT, MSD_TLS_KEY not set"):
        certificates_of()
    monkeypatch.setenv("MSD_TLS_CERT", "/b")
    monkeypatch.setenv("MSD_TLS_KEY", "/c")
    assert certificates_of() == Certificates(ca="/a", certificate="/b", key="/c")
