"""Rows that end, hang or exhaust a process, in a run: found out, left out, counted, and nobody else notices."""

import json

import pytest

import msd
from msd.errors import BadSampleRateError
from msd.runtime.local import LocalEngine
from msd.testing import poison

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

STEPS = 20
HARMFUL = (31, 90)
"""Far enough apart that each ends a process of its own."""


def left_out(sample):
    return None if sample["n"] in HARMFUL else sample


def contents(engine, steps=STEPS):
    """Return the samples and all arrays that each rank receives, step by step."""
    clients = [engine.client(rank) for rank in range(2)]
    found = []
    for _ in range(steps):
        batches = [next(client) for client in clients]
        found.append([(batch.sample_ids, [row.input_ids.tobytes() for row in batch.microbatches]) for batch in batches])
    return found


def without_them(steps=STEPS):
    with LocalEngine(config_of(left_out)) as engine:
        return contents(engine, steps)


def config_of(transform, *, where="threads", workers=2, max_rate=0.5, rows=300, **changes):
    return msd.Config(
        sources={
            "web": {
                "rows": [{"ids": [number % 50] * (1 + number % 9), "n": number} for number in range(rows)],
                "transforms": [transform, {"kind": "tokens"}],
                "transform_in": where,
                "shuffle": False,
                "on_error": {"hang_s": 1.0, "max_rate": max_rate, **changes.pop("on_error", {})},
            }
        },
        batch={"sequence_length": 16, "global_batch_size": 4},
        mesh={"dp": 2},
        num_microbatches=1,
        runtime={"workers": workers, "deadline_s": 60, "silence_s": 1.0, **changes},
    )


@pytest.mark.parametrize("where", ["processes"])
@pytest.mark.parametrize("harm", ["SegfaultAt", "LoopAt", "HoldAt", "EatAt"])
def test_rows_that_do_harm_are_left_out_and_all_others_come_as_ever(tmp_path, harm, where):
    listed = tmp_path / "failed.jsonl"
    memory = {"host_memory": 500 << 20} if harm == "EatAt" else {}
    config = config_of(
        getattr(poison, harm)(*HARMFUL), where=where, on_error={"quarantine": str(listed)}, **memory
    )  # fmt: skip
    with msd.start(config) as engine:
        assert contents(engine) == without_them()
        counted = engine.stats()["sources"]["web"]
    assert counted["killed"] >= len(HARMFUL)
    assert counted["failed_rows"] == 0
    records = [json.loads(line) for line in listed.read_text().splitlines()]
    assert {record["row"] for record in records} == set(HARMFUL)
    assert all(record["reason"].startswith("Killed: ") for record in records)


def test_killed_rows_count_toward_the_rate_of_failed_ones():
    config = config_of(poison.SegfaultAt(*range(0, 300, 10)), where="processes", max_rate=0.02)
    with msd.start(config) as engine, pytest.raises(BadSampleRateError, match="web"):
        contents(engine, 100)
