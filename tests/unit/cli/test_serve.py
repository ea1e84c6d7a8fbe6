import pytest

from msd.cli.serve import _host_and_port
from msd.errors import ConfigError


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("10.0.0.1:7077", ("10.0.0.1", 7077)),
        ("[::1]:7077", ("::1", 7077)),
        ("node-3.cluster:0", ("node-3.cluster", 0)),
        ("node-3", ("node-3", 0)),
        (":7077", (None, 7077)),
    ],
)
def test_a_place_to_listen_at_is_a_host_a_port_or_both(listen, place):
    assert _host_and_port(listen) == place


@pytest.mark.parametrize("listen", ["", ":", "host:port", "host:70770", "tcp://host:1", "a@host:1", "host:1/x"])
def test_what_is_no_place_is_refused_with_one_that_is(listen):
    with pytest.raises(ConfigError, match="is no place to listen at; give HOST:PORT"):
        _host_and_port(listen)
