import json
import os
import stat

import pytest

from msd.client.link.address import Address, resolve, write_rendezvous
from msd.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("msd://host-7:7000?token=a%26b&run=r1", "tcp://host-7:7000"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        ("tcp://[::1]:7000?token=x", "tcp://[::1]:7000"),
        ("unix:///run/my%20run.sock?token=x", "unix:///run/my%20run.sock"),
    ],
)
def test_an_address_reads_back_from_its_url_and_shows_no_token(text, shown):
    address = Address.parse(text)
    assert Address.parse(address.url()) == address
    assert str(address) == shown
    assert "token" not in repr(address)


def test_parts_of_an_address_are_decoded():
    address = Address.parse("msd://host-7:7000?token=a%26b&run=r1")
    assert (address.host, address.port, address.token, address.run) == ("host-7", 7000, "a&b", "r1")
    assert address.at("unix:///x.sock") == Address(path="/x.sock", token="a&b", run="r1")


@pytest.mark.parametrize("text", ["", "host:1", "msd://host", "msd://host:port", "unix://x", "http://h:1", "tcp://h:0"])
def test_what_is_no_address_is_refused_with_the_forms_there_are(text):
    with pytest.raises(ConfigError, match=r"no run can be reached at .*; use msd://host:port"):
        resolve(text)


def test_a_misspelt_part_of_an_address_is_refused():
    with pytest.raises(ConfigError, match="unknown part 'tokn'"):
        Address.parse("tcp://h:1?tokn=x")


def test_a_rendezvous_file_holds_the_address_for_its_owner_alone(tmp_path):
    address = Address(host="h", port=1, token="t", run="r")
    path = tmp_path / "a b.json"
    write_rendezvous(path, Address(host="older", port=1))
    write_rendezvous(path, address)
    assert resolve(path.as_uri()) == address
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a b.json"]


def test_a_rendezvous_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    for taken in (path, tmp_path / "none" / "run.json"):
        with pytest.raises(ConfigError, match=f"cannot be written to {taken} "):
            write_rendezvous(taken, Address(host="h", port=1))
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("text", ["", "10.0.0.1:7077", "http://h:1"])
def test_what_is_no_address_is_shown_as_it_was_given_without_its_token(text):
    with pytest.raises(ConfigError, match=f"reached at {text!r}; use") as refused:
        Address.parse(f"{text}?token=secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "{}", "not json", json.dumps({"address": "nowhere"})])
def test_a_rendezvous_file_with_something_else_is_refused(tmp_path, text):
    (tmp_path / "address.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        resolve((tmp_path / "address.json").as_uri())
