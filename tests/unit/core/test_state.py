"""States: canonical text, identity, and refusal by name."""

import pytest

from msd.core.state import canonical_json, expect_state, fingerprint
from msd.errors import StateError


def test_equal_values_have_equal_text_whatever_the_order_of_keys():
    assert canonical_json({"b": [1, 2.5], "a": None}) == canonical_json({"a": None, "b": [1, 2.5]})
    assert canonical_json({"a": "ü"}) == '{"a":"\\u00fc"}'


def test_fingerprints_tell_values_apart():
    values = [{"a": 1}, {"a": "1"}, {"a": 1.0}, {"a": [1]}, {"a": True}, {}]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint({"a": 1}) == fingerprint({"a": 1})


def test_a_matching_state_is_accepted():
    expect_state({"version": 1, "source": "web", "more": 0}, version=1, source="web")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"version": 1, "source": "code"}, "the state has source='code', this run has source='web'"),
        ({"version": 1}, "the state has no 'source'; pass what state_dict"),
        ([], "the state has no 'version'"),
    ],
)
def test_a_state_of_another_run_is_refused_by_name(state, message):
    with pytest.raises(StateError, match=message):
        expect_state(state, version=1, source="web")
