import msgspec
import pytest

from msd.cost.linear import LinearModel
from msd.cost.profile import Profile
from msd.errors import ConfigError
from msd.testing.profiles import made_up_profile


def test_a_profile_is_read_back_as_it_was():
    profile = made_up_profile()
    again = Profile.from_json(profile.to_json())
    assert again == profile
    assert again.sources["web"].of_blocks == profile.sources["web"].of_rows
    assert again.sources["web"].cost.prepare_s == 1e-3


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"version": 99}'])
def test_what_is_no_profile_of_this_release_is_refused(content):
    with pytest.raises(ConfigError, match="msd profile"):
        Profile.from_json(content, name="here.json")


def test_a_profile_that_fits_has_no_differences():
    found = made_up_profile().differences({"web": ("d", "t")}, {"cpu": "a", "cores": 2}, {"pillow": "12.0"})
    assert found == []


def test_what_speaks_against_a_profile_is_named():
    found = made_up_profile().differences(
        {"web": ("other", "t"), "books": ("d", "t")}, {"cpu": "b", "cores": 2}, {"pillow": "13.0"}
    )
    assert found == [
        "data of source 'web' are others",
        "it has no source 'books'",
        "it was made on cpu a, this is b",
        "it was made with pillow 12.0, this is 13.0",
    ]


def test_a_block_model_of_more_than_bytes_is_none():
    two = LinearModel(("bytes", "pixels"), (1.0, 2.0), 0.0, (0.0, 0.0), (1.0, 1.0))
    strange = msgspec.structs.replace(made_up_profile().sources["web"], block_model=two.as_dict())
    with pytest.raises(ConfigError, match="profile again"):
        _ = strange.of_blocks
