"""Sources without an end on Dask: hosts that admit at once, are lost, wait; the local engine is the judge."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import programs

import msd
from msd.errors import EngineError
from msd.runtime.dask.engine import DaskEngine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

TOKENS = [{"kind": "tokenize", "tokenizer": "bytes"}]


def put(folder: Path, number: int, rows: int = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"text": f"file {number} row {row} " + "x" * (row % 30)}) + "\n" for row in range(rows))
    (folder / f".{number}.tmp").write_text(text)
    os.rename(folder / f".{number}.tmp", folder / f"{number:03d}.jsonl")


def settings(root: Path, *, kind: str = "dask", web: bool = False, **changes: Any) -> dict[str, Any]:
    fresh = {
        "format": "tail", "path": str(root / "in"), "spool": str(root / "spool"), "poll_s": 0.05, "settle_s": 0,
        "transforms": TOKENS, **changes.pop("fresh", {}),
    }  # fmt: skip
    sources: dict[str, Any] = {"fresh": fresh}
    if web:
        with open(root / "web.jsonl", "w") as file:
            file.writelines(json.dumps({"text": f"row {number} of many"}) + "\n" for number in range(400))
        sources["web"] = {"path": str(root / "web.jsonl"), "transforms": TOKENS}
    return {
        "sources": sources,
        "batch": {"sequence_length": 256, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
        "loaders": 2,
        "runtime": {"kind": kind, "workers": 2, "deadline_s": 60, "silence_s": 1.5},
        **changes,
    }


def digest(batch: Any) -> Any:
    return batch.step, batch.rank, batch.sample_ids, [row.input_ids.tolist() for row in batch.microbatches]


def take(clients: list[Any], steps: int) -> list[Any]:
    return [digest(next(client)) for _ in range(steps) for client in clients]


def replay(root: Path, steps: int, **changes: Any) -> list[Any]:
    with msd.start(msd.Config(**settings(root, kind="local", **changes))) as engine:
        return take([engine.client(rank) for rank in range(2)], steps)


@contextlib.contextmanager
def running(root: Path, **changes: Any) -> Iterator[tuple[DaskEngine, list[Any]]]:
    with msd.start(msd.Config(**settings(root, **changes))) as engine:
        assert isinstance(engine, DaskEngine)
        yield engine, [engine.client(rank) for rank in range(2)]


def kill(engine: DaskEngine, name: str) -> None:
    assert engine._cluster is not None
    os.kill(engine._cluster._workers[name].pid, signal.SIGKILL)


@pytest.fixture
def trickle(tmp_path: Path) -> Iterator[Callable[..., None]]:
    stop, threads = threading.Event(), []

    def begin(count: int, *, every_s: float = 0.1) -> None:
        def write() -> None:
            for number in range(count):
                if stop.wait(every_s):
                    return
                put(tmp_path / "in", number)

        threads.append(threading.Thread(target=write))
        threads[-1].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join(timeout=10)


@pytest.mark.faults
def test_two_hosts_of_which_one_is_lost_while_data_trickles_in_give_what_a_replay_gives(tmp_path, trickle):
    trickle(60)
    with running(tmp_path) as (engine, clients):
        live = take(clients, 6)
        kill(engine, "msd-loader-0")
        live += take(clients, 8)
        stats = engine.stats()["sources"]["fresh"]
    assert stats["admitted_rows"] == 60 * stats["admissions"]
    assert replay(tmp_path, 14) == live


def test_lines_that_two_hosts_take_come_once_and_in_order(tmp_path):
    log, stop = tmp_path / "log.jsonl", threading.Event()

    def write() -> None:
        with open(log, "w") as file:
            for number in range(4000):
                if stop.wait(0.0005):
                    return
                file.write(json.dumps({"text": f"line {number} " + "y" * (number % 40)}) + "\n")
                file.flush()

    thread = threading.Thread(target=write)
    thread.start()
    fresh = {"path": str(log)}
    try:
        with running(tmp_path, fresh=fresh) as (_, clients):
            live = take(clients, 8)
    finally:
        stop.set()
        thread.join(timeout=10)
    assert replay(tmp_path, 8, fresh=fresh) == live


def test_a_wait_says_for_what_and_holds_up_no_other_source(tmp_path):
    put(tmp_path / "in", 0, rows=5)
    with running(tmp_path, web=True) as (engine, clients):
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                take(clients, 1)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        until = time.monotonic() + 30
        while "to be written" not in str(engine.stats()["waits_for"]) and time.monotonic() < until:
            time.sleep(0.05)
        stats = engine.stats()
        assert stats["waits_for"].startswith("row 5 of source 'fresh' to be written: it waits for files to appear in")
        # The other is prepared ahead all the same, and a host has threads for whatever else it is asked.
        assert stats["sources"]["web"]["ready_rows"] > 0
        assert stats["sources"]["fresh"]["admitted_rows"] == 5
        for number in range(1, 10):
            put(tmp_path / "in", number)
        thread.join(timeout=30)
        assert not thread.is_alive()
        assert not errors


def test_on_stall_suspends_it_and_it_is_resumed_where_it_stood(tmp_path):
    put(tmp_path / "in", 0, rows=30)
    fresh = {"on_stall": {"after_s": 1.0, "then": "suspend"}}
    with running(tmp_path, web=True, fresh=fresh) as (engine, clients):
        take(clients, 4)
        stats = engine.stats()
        assert stats["sources"]["fresh"]["is_suspended"]
        assert [edit["edit"] for edit in stats["edits"]] == ["suspend"]
        for number in range(1, 8):
            put(tmp_path / "in", number)
        engine.resume_source("fresh")
        take(clients, 8)
        stats = engine.stats()
        assert not stats["sources"]["fresh"]["is_suspended"]
        assert stats["sources"]["fresh"]["samples"] > 30
        placed = engine.which(stats["next_step"] - 1)
    ordinals = [place["ordinal"] for place in placed if place["source"] == "fresh"]
    assert ordinals
    assert [edit["edit"] for edit in stats["edits"]] == ["suspend", "resume"]


def test_on_stall_stops_the_run_by_name(tmp_path):
    put(tmp_path / "in", 0, rows=5)
    fresh = {"on_stall": {"after_s": 0.5, "then": "stop"}}
    with (
        running(tmp_path, fresh=fresh) as (_, clients),
        pytest.raises(EngineError, match="source 'fresh' did not deliver row 5"),
    ):
        take(clients, 1)


def test_two_hosts_that_consume_one_queue_give_each_message_one_place(tmp_path):
    class Topic:
        """A log with offsets; made anew on each host."""

        def __init__(self, path):
            self.path, self.at = path, 0

        def take(self, max_rows, timeout_s):
            with open(self.path) as file:
                found = file.read().splitlines()[self.at : self.at + 40]
            self.at += len(found)
            return found

        def position(self):
            return self.at

        def seek(self, position):
            self.at = position

    topic = tmp_path / "topic.txt"
    topic.write_text("".join(f"message {number} of many\n" for number in range(1500)))
    fresh = {"format": "queue", "cls": Topic, "options": {"path": str(topic)}, "path": None, "settle_s": 2.0}
    with running(tmp_path, fresh=fresh, shadows=1) as (engine, clients):
        live = take(clients, 8)
        placed = [place for step in range(8) for place in engine.which(step)]
    rows = {(place["shard"], place["row"]) for place in placed}
    assert len(rows) == len({place["ordinal"] for place in placed})
    topic.unlink()
    assert replay(tmp_path, 8, fresh=fresh) == live


SCRIPT = """
import json, sys, msd
if __name__ == "__main__":
    settings = json.load(open(sys.argv[1] + "/settings.json"))
    with msd.start(msd.Config(**settings)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        while True:
            for client in clients:
                batch = next(client)
                if client.rank == 1:
                    print(batch.step, flush=True)
"""


@pytest.mark.faults
def test_a_run_that_is_killed_among_admissions_goes_on_from_its_checkpoint(tmp_path, trickle):
    trickle(80)
    changes = {"checkpoint": {"path": str(tmp_path / "kept"), "every": 2, "lease_s": 1.0, "take_over": True}}
    (tmp_path / "settings.json").write_text(json.dumps(settings(tmp_path, **changes)))
    (tmp_path / "run.py").write_text(SCRIPT)
    with programs(tmp_path) as start:
        program = start("first", tmp_path / "run.py", tmp_path)
        until = time.monotonic() + 60
        while len(program.output.split()) < 5 and time.monotonic() < until:
            time.sleep(0.05)
        program.process.kill()
        program.process.wait(30)
    with running(tmp_path, **changes) as (_, clients):
        live = take(clients, 4)
    first = live[0][0]
    assert first >= 2
    assert replay(tmp_path, first + 4)[2 * first :] == live
