"""Randomness with an address.

No generator is shared: a draw belongs to an address of strings and integers, so adding a loader, a source or a
resume changes nothing elsewhere. Only the raw 64-bit words of a counter-based bit generator (Philox 4x64-10,
Salmon et al. 2011) and integer arithmetic are used, because numpy promises the stream of a bit generator but not
that of `Generator.permutation` or `shuffle`.
"""

import hashlib
import json

import numpy as np

from msd.core.arrays import Int64Array, UInt64Array

ORDER_VERSION = 1
"""Version of the order of samples; a change of anything in this file or in `core.order` raises it."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def address_key(*address: int | str) -> int:
    """Return the 128-bit key of an address, the same on every machine.

    The address is encoded as JSON, so `("a", "b")` and `("ab",)`, or `1` and `"1"`, never collide.
    """
    encoded = json.dumps(address, ensure_ascii=True, separators=(",", ":")).encode()
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=16).digest(), "big")


def raw_words(count: int, *address: int | str) -> UInt64Array:
    """Return `count` uniform 64-bit words that belong to `address`."""
    words: UInt64Array = np.random.Philox(key=address_key(*address)).random_raw(count)
    return words


def permutation(count: int, *address: int | str) -> Int64Array:
    """Return a permutation of `range(count)` that belongs to `address`: a stable argsort of raw words."""
    return np.argsort(raw_words(count, *address), kind="stable").astype(np.int64, copy=False)


def rng_for(*address: int | str) -> np.random.Generator:
    """Return the generator that belongs to one place in the run, for transforms that draw.

    Its raw words are the same on every machine; what `Generator` methods make of them is numpy's to decide, which
    is why the numpy release is recorded with a run and the order of samples never uses it.
    """
    return np.random.Generator(np.random.Philox(key=address_key(*address)))


def hash_rows(first_row: int, count: int, *address: int | str) -> UInt64Array:
    """Return one well-mixed 64-bit word for each row `first_row .. first_row + count - 1` of an address.

    SplitMix64 (Steele, Lea, Flood 2014) of the row number: any range can be computed without its predecessors, which
    a row-wise split of a source needs.
    """
    with np.errstate(over="ignore"):
        z = np.arange(first_row, first_row + count, dtype=np.uint64)
        z = z * _GOLDEN + np.uint64(address_key(*address) & 0xFFFFFFFFFFFFFFFF)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
