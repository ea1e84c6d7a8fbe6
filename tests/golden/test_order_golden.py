"""The order of samples, pinned: a change here is a breaking change of kind ORDER and raises `ORDER_VERSION`.

Needs only numpy and `msd.core`, so that CI can run it on an older numpy. `MSD_WRITE_GOLDEN=1` writes the file anew.
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from msd.core.index import Split
from msd.core.order import SourceOrder, auto_window_blocks
from msd.core.seeds import ORDER_VERSION, address_key, hash_rows, permutation, raw_words
from msd.testing.blocks import made_up_blocks, sequence

GOLDEN = Path(__file__).with_name(f"order_v{ORDER_VERSION}.json")

CASES = {
    "one_row": {"rows": [1]},
    "one_block": {"rows": [17]},
    "even_blocks": {"rows": [50] * 20},
    "uneven_blocks": {"rows": [1, 200, 3, 0, 57, 12, 0, 0, 90, 41, 5], "window": 3},
    "large_blocks": {"rows": [30] * 12, "block_bytes": 5 << 20},
    "streams": {"rows": [9, 4, 11, 11, 2, 8], "units": [0, 0, 1, 1, 1, 2], "shards": [0, 0, 1, 1, 1, 2]},
    "split": {"rows": [64] * 6, "shards": [0, 0, 1, 1, 2, 2], "split": [0.1, 0.65]},
    "file_order": {"rows": [5, 0, 7], "shuffle": False},
}  # fmt: skip


def _order(case: dict, *, seed: int = 17, source: str = "web") -> SourceOrder:
    blocks = made_up_blocks(
        case["rows"],
        units=case.get("units"),
        shards=case.get("shards"),
        block_bytes=case.get("block_bytes", 1 << 20),
        split=Split(low=case["split"][0], high=case["split"][1]) if "split" in case else None,
    )
    window = case.get("window", auto_window_blocks(blocks))
    return SourceOrder(seed=seed, source=source, blocks=blocks, shuffle=case.get("shuffle", True), window_blocks=window)


def _describe(case: dict, **address: object) -> dict:
    order = _order(case, **address)
    rows = sequence(order, 0, 3 * order.rows_per_epoch)
    digest = hashlib.blake2b(np.array(rows, dtype="<i8").tobytes(), digest_size=16).hexdigest()
    return {
        "rows_per_epoch": order.rows_per_epoch,
        "windows_per_epoch": order.windows_per_epoch,
        "index": order.blocks.digest,
        "first": [list(row) for row in rows[:8]],
        "three_epochs": digest,
    }


def computed() -> dict:
    """Return everything the golden file holds, as this machine computes it."""
    return {
        "order_version": ORDER_VERSION,
        "address_key": str(address_key(17, "rows", "web", 0, 3)),
        "raw_words": [str(word) for word in raw_words(6, 17, "rows", "web", 0, 3).tolist()],
        "permutation": permutation(12, 17, "units", "web", 1).tolist(),
        "hash_rows": [str(word) for word in hash_rows(1_000_000, 4, "split", "web/000.parquet").tolist()],
        "cases": {name: _describe(case) for name, case in CASES.items()},
        "other_seed": _describe(CASES["even_blocks"], seed=18),
        "other_source": _describe(CASES["even_blocks"], source="büch"),
    }


if os.environ.get("MSD_WRITE_GOLDEN"):
    GOLDEN.write_text(json.dumps(computed(), indent=1) + "\n", encoding="utf-8")

PINNED = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", [key for key in PINNED if key != "cases"])
def test_seeds_and_versions_are_those_pinned(entry):
    assert computed()[entry] == PINNED[entry]


@pytest.mark.parametrize("name", CASES)
def test_the_sequence_of_a_source_is_the_one_pinned(name):
    assert _describe(CASES[name]) == PINNED["cases"][name]


def test_the_order_version_is_pinned():
    assert (ORDER_VERSION, GOLDEN.name) == (1, "order_v1.json")


def test_the_pinned_sequences_differ_from_one_another():
    even, seed, source = PINNED["cases"]["even_blocks"], PINNED["other_seed"], PINNED["other_source"]
    assert len({entry["three_epochs"] for entry in (even, seed, source)}) == 3
