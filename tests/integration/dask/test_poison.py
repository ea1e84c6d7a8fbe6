"""Rows that end, hang or exhaust a process, in a run: found out, left out, counted, and nobody else notices."""

import json
import os
import signal

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
    return contents_of([engine.client(rank) for rank in range(2)], steps)


def contents_of(clients, steps):
    found = []
    for _ in range(steps):
        batches = [next(client) for client in clients]
        found.append([(batch.sample_ids, [row.input_ids.tobytes() for row in batch.microbatches]) for batch in batches])
    return found


def without_them(steps=STEPS):
    with LocalEngine(config_of(left_out)) as engine:
        return contents(engine, steps)


def config_of(transform, *, where="threads", workers=2, max_rate=0.5, rows=500, **changes):
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


@pytest.mark.parametrize(("where", "workers"), [("threads", 3), ("processes", 1)])
@pytest.mark.parametrize("harm", ["SegfaultAt", "LoopAt", "HoldAt", "EatAt"])
def test_rows_that_do_harm_are_left_out_and_all_others_come_as_ever(tmp_path, harm, where, workers):
    listed = tmp_path / "failed.jsonl"
    memory = {"host_memory": 500 << 20} if harm == "EatAt" else {}
    config = config_of(
        getattr(poison, harm)(*HARMFUL), where=where, workers=workers, on_error={"quarantine": str(listed)}, **memory
    )
    with msd.start(config) as engine:
        assert contents(engine) == without_them()
        assert killed_in(engine) == len(HARMFUL)
        assert engine.stats()["sources"]["web"]["failed_rows"] == 0
    records = [json.loads(line) for line in listed.read_text().splitlines()]
    assert {record["row"] for record in records} == set(HARMFUL)
    assert all(record["reason"].startswith("Killed: ") for record in records)


def test_killed_rows_count_toward_the_rate_of_failed_ones():
    config = config_of(poison.SegfaultAt(*range(0, 500, 10)), where="processes", max_rate=0.02)
    with msd.start(config) as engine, pytest.raises(BadSampleRateError, match="web"):
        contents(engine, 100)


def killed_in(engine):
    return engine.stats()["sources"]["web"]["killed"]


def counted(log):
    """Return what is killed at some rows, and writes down each time that it is."""

    def harms(sample):
        if sample["n"] in HARMFUL:
            with open(log, "a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    return harms


def test_a_run_that_resumes_after_it_never_runs_the_row_and_one_from_before_comes_to_the_same(tmp_path):
    log = tmp_path / "tries"
    config = config_of(counted(str(log)), where="processes", workers=1)
    kept = config.replace(checkpoint={"path": str(tmp_path / "ckpt"), "every": 1000})
    expected = without_them()
    with msd.start(kept) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        before, taken = clients[0].state_dict(), 0
        # A position tells of what was decided before the step that it follows was planned.
        until = STEPS - 2
        while taken < until:
            assert contents_of(clients, 1) == expected[taken : taken + 1]
            taken += 1
            if until == STEPS - 2 and killed_in(engine) == len(HARMFUL):
                until = min(until, engine.stats()["next_step"] + 1)
    # Once beside others and once apart, each.
    assert len(log.read_text()) == 2 * len(HARMFUL)
    log.write_text("")
    with msd.start(kept) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        first = clients[0].next_step
        assert 0 < first <= taken
        assert contents_of(clients, STEPS - first) == expected[first:]
    assert log.read_text() == ""
    with msd.start(config) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            client.load_state_dict(before)
        assert contents_of(clients, STEPS) == expected
    assert len(log.read_text()) == 2 * len(HARMFUL)
