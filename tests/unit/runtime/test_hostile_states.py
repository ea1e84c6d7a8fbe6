"""States, snapshots and profiles that somebody made to do harm, with digests that are right: refused, and quickly."""

import base64
import copy
import hashlib
import json
import tracemalloc
import zlib
from typing import Any

import pytest

import msd
from msd.checkpoint.snapshot import STORE_VERSION
from msd.checkpoint.store import open_store
from msd.cost.profile import Profile
from msd.errors import ConfigError, MsdError, StateError
from msd.runtime.encoding import from_columns, unpacked
from msd.runtime.state import read_state, run_state
from msd.testing.profiles import made_up_profile

DEEP = "[" * 200_000
ROWS = [{"text": f"row {number}"} for number in range(40)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        config = msd.Config(
            sources={"a": {"rows": ROWS, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}},
            batch={"sequence_length": 64, "global_batch_size": 2},
            mesh={"dp": 1},
            num_microbatches=1,
            runtime={"kind": "local"},
        )
        with msd.start(config) as engine:
            yield engine


@pytest.fixture(scope="module")
def saved(engine) -> dict[str, Any]:
    client = engine.client(rank=0)
    for _ in range(3):
        next(client)
    state: dict[str, Any] = client.state_dict()
    return state


def changed(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a state of which one value is another, with the digest that belongs to it."""
    parts = read_state(state)
    progress = copy.deepcopy(parts.progress)
    place = progress
    for piece in path[:-1]:
        place = place[piece]
    assert path[-1] in place or isinstance(path[-1], int)
    place[path[-1]] = value
    return run_state(progress, parts.identity)


NO_NUMBERS = [float("nan"), float("inf"), 10**30, "x", None, [], 1.5]
PATHS = [("step",), ("sources", "a", "ordinal"), ("sources", "a", "credit")]
FORGED = [(path, value) for path in PATHS for value in NO_NUMBERS] + [(path, -1) for path in PATHS[:2]]


@pytest.mark.parametrize(("path", "value"), FORGED, ids=str)
def test_numbers_that_cannot_be_are_refused_and_the_run_goes_on(engine, saved, path, value):
    client = engine.client(rank=0)
    with pytest.raises(MsdError) as caught:
        client.load_state_dict(changed(saved, path, value))
    assert "\n" not in str(caught.value)
    client.load_state_dict(saved)
    next(client)


def test_a_number_of_entries_that_nothing_stands_behind_makes_none(saved):
    with pytest.raises(ValueError, match="other lengths"):
        from_columns({}, 10**12)
    with pytest.raises(ValueError, match="other lengths"):
        from_columns({"length": [1]}, 10**12)
    assert from_columns({}, 0) == []


def test_packed_text_that_unpacks_without_end_is_cut_off():
    bomb = base64.b85encode(zlib.compress(bytes(1 << 29), 9)).decode()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="it was cut off"):
            unpacked(bomb)
        assert tracemalloc.get_traced_memory()[1] < 600 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "state",
    [
        {"msd": DEEP},
        {"msd": "1" * 10_000},
        {"msd": {"msd": 1}},
        {"kind": "msd", "version": 10**30},
        {"kind": DEEP},
        DEEP,
        [[]],
    ],
    ids=["deep", "digits", "nested", "version", "kind", "text", "list"],
)
def test_what_is_no_state_is_refused_as_such(state):
    with pytest.raises(StateError, match="cannot resume"):
        read_state(state)


@pytest.mark.parametrize(
    "content",
    [
        DEEP.encode(),
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b'{"version": NaN}',
        json.dumps({"version": STORE_VERSION + 1}).encode(),
    ],
    ids=["deep", "list", "nothing", "null", "no text", "NaN", "later"],
)
def test_a_snapshot_that_was_made_up_is_left_out_and_the_one_before_is_used(tmp_path, saved, content):
    store = open_store(str(tmp_path))
    kept = store.save(saved, step=3, run="r", lineage="l", journal=0)
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    (tmp_path / f"snapshot-{99999999:08d}-step-9-{digest}.json").write_bytes(content)
    newest = open_store(str(tmp_path)).newest()
    assert newest is not None
    assert newest.name == kept.name


@pytest.mark.parametrize("content", [DEEP.encode(), b'{"version": ' + b"9" * 10_000 + b"}", b'{"version": NaN}'])
def test_a_profile_that_was_made_up_is_refused(content):
    with pytest.raises(ConfigError, match="msd profile"):
        Profile.from_json(content)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b'"x"', DEEP.encode()], ids=range(5))
def test_a_profile_with_numbers_that_cannot_be_is_refused(number):
    content = made_up_profile().to_json()
    field = b'"process_bytes": '
    start = content.index(field) + len(field)
    end = content.index(b",", start)
    with pytest.raises(ConfigError, match="msd profile"):
        Profile.from_json(content[:start] + number + content[end:])
