"""Sources without an end on the local engine: what a ledger holds decides what comes, not when it was written."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import msd
from msd.errors import ConfigError, DeadlineError, EngineError, StateError

ROWS = 40


def put(folder: Path, number: int, rows: int = ROWS) -> None:
    """Write a file under another name and rename it into place, as whoever feeds a run should."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"text": f"file {number} row {row} " + "x" * (row % 30)}) + "\n" for row in range(rows))
    (folder / f".{number}.tmp").write_text(text)
    os.rename(folder / f".{number}.tmp", folder / f"{number:03d}.jsonl")


def settings(root: Path, *, spool: str = "spool", **changes) -> dict:
    fresh = {
        "format": "tail",
        "path": str(root / "in"),
        "spool": str(root / spool),
        "poll_s": 0.02,
        "settle_s": 0,
        "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}],
    }
    return {
        "sources": {"fresh": fresh},
        "batch": {"sequence_length": 256, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
        "runtime": {"kind": "local", "deadline_s": 20},
        **changes,
    }


def config(root: Path, **changes) -> msd.Config:
    return msd.Config(**settings(root, **changes))


def digest(batch: msd.RankBatch) -> tuple:
    rows = [row.input_ids.tobytes() + row.cu_seqlens.tobytes() for row in batch.microbatches]
    return batch.step, batch.rank, tuple(batch.sample_ids), b"".join(rows)


def taken(engine, steps: int) -> list[tuple]:
    clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
    return [digest(next(client)) for _ in range(steps) for client in clients]


def replay(root: Path, steps: int, **changes) -> list[tuple]:
    with msd.start(config(root, **changes)) as engine:
        return taken(engine, steps)


@pytest.fixture
def trickle(tmp_path):
    """Write files one after the other while a test goes on."""
    stop = threading.Event()
    threads = []

    def begin(count: int, *, every_s: float = 0.05, first: int = 0) -> None:
        def write() -> None:
            for number in range(first, first + count):
                if stop.wait(every_s):
                    return
                put(tmp_path / "in", number)

        threads.append(threading.Thread(target=write))
        threads[-1].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join(timeout=10)


def test_rows_that_come_while_the_run_goes_on_give_what_a_replay_gives(tmp_path, trickle):
    trickle(12)
    with msd.start(config(tmp_path)) as engine:
        live = taken(engine, 6)
        stats = engine.stats()["sources"]["fresh"]
        places = engine.which(2)
    assert stats["admitted_rows"] == stats["admissions"] * ROWS
    assert stats["rows_per_epoch"] is None
    assert {place["shard"] for place in places} <= {f"{number:03d}.jsonl" for number in range(12)}
    assert replay(tmp_path, 6) == live


def test_a_ledger_gives_one_order_and_another_another(tmp_path):
    for number in range(5):
        put(tmp_path / "in", number)
        os.utime(tmp_path / "in" / f"{number:03d}.jsonl", (1000 + number, 1000 + number))
    first = replay(tmp_path, 2)
    assert replay(tmp_path, 2) == first
    assert replay(tmp_path, 2, spool="same") == first
    for number in range(5):
        os.utime(tmp_path / "in" / f"{number:03d}.jsonl", (1000 - number, 1000 - number))
    assert replay(tmp_path, 2, spool="other") != first
    with pytest.raises(msd.SourceError, match="was written again"):
        replay(tmp_path, 2)


def test_a_wait_for_data_is_bounded_and_says_for_what(tmp_path):
    put(tmp_path / "in", 0)
    with msd.start(config(tmp_path, runtime={"kind": "local", "deadline_s": 0.3})) as engine:
        client = engine.client(0)
        with pytest.raises(DeadlineError, match=r"sources\.fresh: row 40 is not there yet: 40 rows .*files to appear"):
            next(client)
        with pytest.raises(EngineError, match=r"step 3 cannot be planned yet: sources\.fresh: row 40"):
            engine.which(3)
        for number in range(1, 4):
            put(tmp_path / "in", number)
        assert next(client).step == 0


def test_whoever_waits_keeps_nobody_from_the_run(tmp_path):
    (tmp_path / "in").mkdir()
    with msd.start(config(tmp_path)) as engine:
        client, raised = engine.client(0), []

        def take() -> None:
            try:
                next(client)
            except msd.MsdError as error:
                raised.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.1)
        began_s = time.monotonic()
        assert engine.stats()["sources"]["fresh"]["admitted_rows"] == 0
        engine.close()
        assert time.monotonic() - began_s < 10
        thread.join(timeout=10)
        assert not thread.is_alive()
        assert len(raised) == 1


def test_other_sources_go_on_while_nothing_is_drawn_of_it(tmp_path):
    (tmp_path / "in").mkdir()
    rows = [{"text": f"row {number}"} for number in range(50)]
    sources = settings(tmp_path)["sources"] | {
        "web": {"rows": rows, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}
    }
    weights = {"weights": {"web": 1, "fresh": 0}}
    with msd.start(config(tmp_path, sources=sources, mixture=weights)) as engine:
        assert len(taken(engine, 5)) == 10


def test_a_run_goes_on_from_a_state_in_another_process(tmp_path, trickle):
    trickle(6)
    with msd.start(config(tmp_path)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        before = [digest(next(client)) for _ in range(2) for client in clients]
        state = clients[0].state_dict()
    assert before
    for number in range(6, 14):
        put(tmp_path / "in", number)
    (tmp_path / "state.json").write_text(json.dumps(state))
    (tmp_path / "settings.json").write_text(json.dumps(settings(tmp_path)))
    script = (
        "import hashlib, json, sys, msd\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_unending_local import digest\n"
        "root = sys.argv[1]\n"
        "with msd.start(msd.Config(**json.load(open(root + '/settings.json')))) as engine:\n"
        "    clients = [engine.client(rank) for rank in range(2)]\n"
        "    for client in clients: client.load_state_dict(json.load(open(root + '/state.json')))\n"
        "    found = [digest(next(client)) for _ in range(3) for client in clients]\n"
        "print(hashlib.sha256(repr(found).encode()).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rest = replay(tmp_path, 5)[4:]
    assert done.stdout.strip() == hashlib.sha256(repr(rest).encode()).hexdigest()


def test_lines_that_are_appended_give_what_a_replay_gives(tmp_path):
    log = tmp_path / "log.jsonl"
    fresh = settings(tmp_path)["sources"]["fresh"] | {"path": str(log)}
    stop = threading.Event()

    def write() -> None:
        with open(log, "w") as file:
            for number in range(2000):
                if stop.is_set():
                    return
                line = json.dumps({"text": f"line {number} " + "y" * (number % 30)}) + "\n"
                file.write(line[:7])
                file.flush()
                file.write(line[7:])
                file.flush()
                time.sleep(0.0005)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        live = replay(tmp_path, 5, sources={"fresh": fresh})
    finally:
        stop.set()
        thread.join(timeout=10)
    assert replay(tmp_path, 5, sources={"fresh": fresh}) == live


def test_a_kill_in_the_middle_loses_nothing(tmp_path, trickle):
    trickle(14, every_s=0.03)
    (tmp_path / "settings.json").write_text(json.dumps(settings(tmp_path)))
    script = (
        "import json, sys, msd\n"
        "engine = msd.start(msd.Config(**json.load(open(sys.argv[1] + '/settings.json'))))\n"
        "clients = [engine.client(rank) for rank in range(2)]\n"
        "while True:\n"
        "    for client in clients: print(next(client).step, flush=True)\n"
    )
    for steps in (1, 3):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == steps:
                break
        process.kill()
        process.wait(timeout=30)
        process.stdout.close()
    first = replay(tmp_path, 6)
    assert replay(tmp_path, 6) == first


@pytest.mark.parametrize(
    ("mixture", "said"),
    [
        ({"repetitions": 2}, "repetitions 2 cannot hold for source 'fresh'"),
        ({"mode": "proportional"}, "source 'fresh' has no end"),
        ({"clock": "epoch"}, "source 'fresh' has no end"),
    ],
)
def test_mixtures_that_go_by_size_are_refused(tmp_path, mixture, said):
    with pytest.raises(ConfigError, match=said):
        config(tmp_path, mixture=mixture)


def test_a_state_of_another_source_is_refused(tmp_path):
    put(tmp_path / "in", 0)
    put(tmp_path / "in", 1)
    put(tmp_path / "in", 2)
    bounded = settings(tmp_path)["sources"]["fresh"] | {"format": "jsonl"}
    for key in ("spool", "poll_s", "settle_s"):
        bounded.pop(key)
    with msd.start(config(tmp_path)) as engine:
        client = engine.client(0)
        next(client)
        state = client.state_dict()
    with (
        msd.start(config(tmp_path, sources={"fresh": bounded})) as engine,
        pytest.raises(StateError, match=r"sources\.fresh\.data"),
    ):
        engine.client(0).load_state_dict(state)


def saved_after(root: Path, steps: int, **changes) -> dict:
    with msd.start(config(root, **changes)) as engine:
        client = engine.client(0)
        for _ in range(steps):
            next(client)
        return client.state_dict()


def load(root: Path, state: dict, **changes) -> tuple:
    with msd.start(config(root, **changes)) as engine:
        client = engine.client(0)
        client.load_state_dict(state)
        return digest(next(client))


class TestStates:
    @pytest.fixture
    def state(self, tmp_path) -> dict:
        for number in range(8):
            put(tmp_path / "in", number)
            os.utime(tmp_path / "in" / f"{number:03d}.jsonl", (1000 + number, 1000 + number))
        return saved_after(tmp_path, 3)

    def test_what_is_admitted_later_changes_no_state(self, tmp_path, state):
        for number in range(8, 20):
            put(tmp_path / "in", number)
        assert saved_after(tmp_path, 3) == state
        assert load(tmp_path, state)[0] == 3

    def test_a_state_says_where_in_its_ledger_it_stands(self, tmp_path, state):
        (tmp_path / "state.json").write_text(json.dumps(state))
        done = subprocess.run(
            [sys.executable, "-m", "msd.cli.main", "state", "show", str(tmp_path / "state.json"), "--json"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        shown = json.loads(done.stdout)["sources"]["fresh"]
        count, chain = shown["ledger"]
        entry = json.loads((tmp_path / "spool" / f"admission-{count - 1:08d}.json").read_text())
        assert entry["chain"] == chain
        assert entry["first"] < shown["ordinal"] <= entry["first"] + ROWS

    def test_a_ledger_that_was_cut_is_refused(self, tmp_path, state):
        os.unlink(tmp_path / "spool" / "admission-00000001.json")
        before = sorted(os.listdir(tmp_path / "spool"))
        with pytest.raises(StateError, match=r"source 'fresh' stands in the first \d admissions .* has 1; name"):
            load(tmp_path, state)
        assert sorted(os.listdir(tmp_path / "spool")) == before

    def test_a_ledger_of_another_order_is_refused(self, tmp_path, state):
        for number in range(8):
            os.utime(tmp_path / "in" / f"{number:03d}.jsonl", (1000 - number, 1000 - number))
        saved_after(tmp_path, 3, spool="other")
        with pytest.raises(StateError, match=r"of the one in .*other are others"):
            load(tmp_path, state, spool="other")

    def test_another_mesh_goes_on_with_the_same_rows(self, tmp_path, state):
        def samples(**changes) -> list:
            with msd.start(config(tmp_path, **changes)) as engine:
                clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
                for client in clients:
                    client.load_state_dict(state)
                return sorted(sample for client in clients for sample in next(client).sample_ids)

        assert samples() == samples(mesh={"dp": 4}, num_microbatches=1)


def test_a_checkpoint_goes_on_by_itself(tmp_path):
    for number in range(12):
        put(tmp_path / "in", number)
    kept = {"checkpoint": {"path": str(tmp_path / "kept"), "every": 1}}
    with msd.start(config(tmp_path, **kept)) as engine:
        before = taken(engine, 3)
    with msd.start(config(tmp_path, **kept)) as engine:
        after = taken(engine, 3)
    assert replay(tmp_path, 6) == before + after


class Numbers:
    """A queue with offsets, as long as a file says."""

    def __init__(self, path: str) -> None:
        self.path, self.at = path, 0

    def take(self, max_rows, timeout_s):
        lines = Path(self.path).read_text().splitlines()[self.at : self.at + min(max_rows, 50)]
        self.at += len(lines)
        return lines

    def position(self):
        return self.at

    def seek(self, position):
        self.at = position


def test_a_queue_gives_what_a_replay_gives_though_the_queue_is_gone(tmp_path):
    queue = tmp_path / "queue.txt"
    queue.write_text("".join(f"message {number}\n" for number in range(600)))
    fresh = {
        "format": "queue", "cls": Numbers, "options": {"path": str(queue)}, "spool": str(tmp_path / "spool"),
        "poll_s": 0.02, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}],
    }  # fmt: skip
    live = replay(tmp_path, 3, sources={"fresh": fresh})
    queue.unlink()
    assert replay(tmp_path, 3, sources={"fresh": fresh}) == live


def test_a_configuration_may_put_rows_in_the_place_of_what_is_still_to_come(tmp_path):
    rows = [{"text": f"row {number} of some"} for number in range(200)]
    bounded = config(tmp_path).replace(sources={"fresh": {"rows": rows}})
    with msd.start(bounded) as engine:
        assert taken(engine, 1)
