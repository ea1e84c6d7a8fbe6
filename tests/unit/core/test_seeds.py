"""Randomness with an address: exact words, no collisions, uniform hashes."""

import itertools

import numpy as np
import pytest

from msd.core.seeds import address_key, hash_rows, permutation, raw_words, rng_for

MASK = 2**64 - 1


def philox_4x64(counter, key, rounds=10):
    """The cipher itself, written from the paper, so that the stream does not rest on numpy's word."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(rounds):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return [c0, c1, c2, c3]


def splitmix_64(state, count):
    """The generator as its authors print it."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(z ^ (z >> 31))
    return words


def test_the_reference_ciphers_give_their_published_words():
    assert philox_4x64((0, 0, 0, 0), (0, 0)) == [
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    ]  # fmt: skip
    assert splitmix_64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_raw_words_are_philox_in_counter_mode():
    key = address_key(17, "rows", "web", 0, 3)
    blocks = [philox_4x64((counter, 0, 0, 0), (key & MASK, key >> 64)) for counter in (1, 2, 3)]
    assert raw_words(10, 17, "rows", "web", 0, 3).tolist() == list(itertools.chain(*blocks))[:10]


def test_hash_rows_is_splitmix_and_needs_no_predecessors():
    state = address_key("split", "web/0.parquet") & MASK
    assert hash_rows(1, 50, "split", "web/0.parquet").tolist() == splitmix_64(state, 50)
    assert hash_rows(31, 5, "split", "web/0.parquet").tolist() == splitmix_64(state, 35)[30:]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), ("1",)),
        (("ab",), ("a", "b")),
        (("a,b",), ("a", "b")),
        (('a","b',), ("a", "b")),
        ((1, 23), (12, 3)),
        (("web", 1), (1, "web")),
        ((), ("",)),
    ],
)
def test_addresses_that_look_alike_do_not_collide(one, other):
    assert address_key(*one) != address_key(*other)


def test_thirty_thousand_addresses_have_different_low_words():
    keys = {address_key(seed, "rows", source, 0, window) & MASK
            for seed in range(5) for source in ("web", "code", "büch") for window in range(2000)}  # fmt: skip
    assert len(keys) == 5 * 3 * 2000


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_permutation_holds_every_number_once(count):
    assert sorted(permutation(count, 17, "p").tolist()) == list(range(count))


def test_first_places_of_permutations_are_uniform():
    first = np.array([permutation(6, 17, "uniform", trial)[0] for trial in range(6000)])
    count = np.bincount(first, minlength=6)
    assert ((count - 1000) ** 2 / 1000).sum() < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


def test_row_hashes_are_uniform_in_every_byte():
    word_N = hash_rows(0, 65_536, "uniform")
    for byte in range(8):
        count = np.bincount(((word_N >> np.uint64(8 * byte)) & np.uint64(255)).astype(np.int64), minlength=256)
        assert ((count - 256) ** 2 / 256).sum() < 330.6  # 255 degrees of freedom, p = 0.001


def test_neighbouring_rows_hash_apart():
    word_N = hash_rows(0, 4096, "avalanche")
    flipped = np.unpackbits((word_N[1:] ^ word_N[:-1]).view(np.uint8)).reshape(-1, 64).sum(axis=1)
    assert abs(flipped.mean() - 32) < 0.5


def test_a_generator_belongs_to_its_address_alone():
    first = rng_for(17, "web", 5, 0)
    first.random(100)
    assert rng_for(17, "web", 5, 1).integers(1 << 60) != rng_for(17, "web", 5, 0).integers(1 << 60)
    assert rng_for(17, "web", 5, 0).bit_generator.random_raw() == int(raw_words(1, 17, "web", 5, 0)[0])
