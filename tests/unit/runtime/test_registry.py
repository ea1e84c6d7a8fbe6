"""Where ranks ask first, whatever becomes of those who serve them."""

import socket
from collections.abc import Iterator

import pytest

import msd
from msd.client.link.messages import NotYet, Place
from msd.core.mesh import Mesh
from msd.errors import ClosedError, ConfigError, DeadlineError, EngineError
from msd.runtime.dask.registry import Registry, own_host, socket_path

AT = {"host": "node-1", "addresses": ["tcp://10.0.0.1:7077"]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry(Mesh.of(dp=2), run="run", token="secret", host="127.0.0.1", port=0)
    yield registry
    registry.close()


def test_a_rank_is_told_where_it_is_served_and_waits_while_that_is_being_replaced(registry):
    assert registry.where(0) == NotYet(waits_for="the constructors to be placed")
    registry.publish((0, 1), AT)
    assert registry.where(1) == [Place(host="node-1", addresses=("tcp://10.0.0.1:7077",))]
    registry.withdraw((1,), "constructor-1, which is being replaced")
    assert registry.where(1) == NotYet(waits_for="constructor-1, which is being replaced")
    assert registry.where(0) == [Place(host="node-1", addresses=("tcp://10.0.0.1:7077",))]


def test_a_rank_of_another_mesh_is_refused_and_after_a_move_those_of_the_new_one_wait(registry):
    with pytest.raises(ConfigError, match="rank 2"):
        registry.where(2)
    registry.publish((0, 1), AT)
    registry.move(Mesh.of(dp=4))
    assert isinstance(registry.where(3), NotYet)
    assert isinstance(registry.where(0), NotYet)


def test_why_the_run_cannot_go_on_is_told_where_nothing_is_served_any_more(registry):
    registry.publish((0,), AT)
    registry.fail(EngineError("all is lost"))
    registry.fail(EngineError("later"))
    assert registry.where(0)[0].host == "node-1"
    with pytest.raises(EngineError, match="all is lost"):
        registry.where(1)


def test_it_serves_nobody_itself(registry):
    for ask in (registry.hello, registry.take, registry.load):
        with pytest.raises(EngineError, match="ask it WHERE"):
            ask(0)
    registry.bye(0, 1)
    registry.lost(0, 1)


def test_over_the_link_a_rank_waits_for_its_place_until_its_deadline(registry):
    assert registry.address.endswith("?run=run&token=secret")
    with pytest.raises(DeadlineError, match="the constructors to be placed"):
        msd.connect(registry.address, rank=0, deadline_s=1.0)
    registry.close()
    registry.close()


def test_a_rank_that_waits_hears_that_the_run_was_closed():
    registry = Registry(Mesh.of(dp=1), run="run", token="secret", host="127.0.0.1", port=0)
    registry.fail(ClosedError("the run was closed"))
    with pytest.raises(ClosedError, match="the run was closed"):
        msd.connect(registry.address, rank=0, deadline_s=20.0)
    registry.close()


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen at 127\.0\.0\.1:{port} \(Address already in use\)"):
            Registry(Mesh.of(dp=1), run="run", token="secret", host="127.0.0.1", port=port)


def test_the_address_of_this_machine_is_the_one_on_the_way_to_the_scheduler():
    assert own_host("tcp://127.0.0.1:8786") == "127.0.0.1"
    assert own_host("tcp://[::1]:8786") in ("::1", "127.0.0.1")
    for unknown in ("bogus", "tcp://no-such-host.invalid:1", "tcp://host:port"):
        assert own_host(unknown) == "127.0.0.1"


def test_each_life_of_a_constructor_has_a_socket_of_its_own(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    assert socket_path("run", 3, 1) != socket_path("run", 3, 2)
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + 90 * "x")
    assert socket_path("run", 3, 1) is None
