"""What the link between a constructor and a rank carries, and what it costs the rank.

A server process gives one batch to whoever asks; a rank process receives it with the transport that `msd.connect` uses.
Both go over a Unix socket and over TCP on the loopback.

    python perf/bench_link.py [--megabytes 16] [--seconds 4] [--repeats 5] [--json]

Three questions: how many MB/s a rank can receive that does nothing else; how much CPU its process spends on a batch; by
how much a loop of pure Python slows down in a rank that receives 200 MB/s meanwhile. For the last one, blocks of turns
of the loop with a batch each and blocks without take turns; the lower fifth of the turns of each kind is compared, so
that what else the machine does counts as little as possible. `spread` compares two halves of the turns without a batch
in the same way: a slow-down below it means nothing. Wall time is only worth reading where a core is free for the server
and for the kernel's copying. `interpreter_share` holds elsewhere too: the time that the receiving thread spends outside
the kernel, and so at most keeps the interpreter lock from the loop.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from msd.client import RankClient
from msd.client.link import Address, Encoded, LinkServer, Load, Moved, Place, Stated, Welcome, encode
from msd.client.remote import SocketTransport
from msd.core.batch import Microbatch, RankBatch

MICROBATCHES = 8
RATE_MB_S = 200
SETTINGS = {"run": "bench", "token": "bench", "version": "bench"}


def main() -> None:
    """Measure both ways, print a table or JSON."""
    arguments = _arguments()
    if arguments.serve:
        _serve(Path(arguments.serve), arguments.megabytes)
        return
    with tempfile.TemporaryDirectory() as folder:
        server = _started([sys.executable, __file__, "--serve", folder, "--megabytes", str(arguments.megabytes)])
        try:
            addresses = json.loads(server.stdout.readline())  # type: ignore[union-attr]
            measured = {way: _measure(address, arguments) for way, address in addresses.items()}
        finally:
            server.communicate("")
    settings = {name: getattr(arguments, name) for name in ("megabytes", "seconds", "repeats")}
    settings |= {"microbatches": MICROBATCHES, "rate_mb_s": RATE_MB_S}
    report = {"bench": "link", "machine": describe(), "settings": settings, **measured}
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


class OneBatch:
    """Gives the same batch for every step."""

    def __init__(self, batch: RankBatch) -> None:
        """Hold what is given."""
        self._batch = batch

    def where(self, rank: int) -> list[Place]:
        """Return nothing: here."""
        return []

    def hello(self, rank: int, client: str, stated: Stated | None) -> Welcome:
        """Welcome any rank."""
        mesh = {"dp": 1, "pp": 1, "cp": 1, "tp": 1}
        return Welcome(session=1, mesh=mesh, generation=0, first_step=0, position="{}", deadline_s=60.0)

    def take(self, rank: int, session: int, generation: int, step: int, taken_through: int, wait_s: float) -> Encoded:
        """Return the batch under the step's number."""
        return encode(replace(self._batch, step=step))

    def load(self, rank: int, session: int, load: Load) -> Moved:
        """Never asked for."""
        raise AssertionError

    def bye(self, rank: int, session: int) -> None:
        """Nothing to release."""

    def lost(self, rank: int, session: int) -> None:
        """Nothing to release."""


def make_batch(megabytes: int) -> RankBatch:
    """Return a batch of about so many megabytes in `MICROBATCHES` rows."""
    tokens = (megabytes * 10**6) // (5 * 4 * MICROBATCHES)
    draw = np.random.default_rng(17)
    starts = np.linspace(0, tokens, 33).astype(np.int32)
    rows = [
        Microbatch(
            num_tokens=tokens,
            input_ids=draw.integers(0, 32_000, tokens, dtype=np.int32),
            labels=draw.integers(0, 32_000, tokens, dtype=np.int32),
            position_ids=np.arange(tokens, dtype=np.int32),
            segment_ids=np.ones(tokens, np.int32),
            loss_mask=np.ones(tokens, np.float32),
            cu_seqlens=starts,
            cu_seqlens_padded=starts,
            max_seqlen=int(np.diff(starts).max()),
        )
        for _ in range(MICROBATCHES)
    ]
    return RankBatch(
        step=0,
        rank=0,
        sample_ids=[("web", ordinal, 0) for ordinal in range(32 * MICROBATCHES)],
        microbatches=rows,
        num_valid_tokens=tokens * MICROBATCHES,
        global_num_valid_tokens=tokens * MICROBATCHES,
        sequence_length=tokens,
        progress="{}",
    )


def _serve(folder: Path, megabytes: int) -> None:
    handler = OneBatch(make_batch(megabytes))
    with LinkServer(handler, unix_path=str(folder / "link"), **SETTINGS) as server:
        urls = [replace(Address.parse(text), token=SETTINGS["token"]).url() for text in server.addresses]
        print(json.dumps(dict(zip(("unix", "tcp"), urls, strict=True))), flush=True)
        sys.stdin.read()


def _measure(address: str, arguments: argparse.Namespace) -> dict[str, float]:
    with RankClient(SocketTransport(address, deadline_s=60.0), rank=0) as client:
        size = next(client).nbytes / 1e6
        measured = _throughput(client, size, arguments.seconds)
        # One turn of the loop takes as long as a batch at the rate asked for.
        length = _loop_length(size / RATE_MB_S)
        turns = max(4, round(arguments.seconds * RATE_MB_S / size / 2 / arguments.repeats))
        linked: list[float] = []
        alone: tuple[list[float], list[float]] = ([], [])
        for repeat in range(2 * arguments.repeats):
            linked += _turns(length, turns, client)
            alone[repeat % 2].extend(_turns(length, turns, None))
    reference = _fifth([*alone[0], *alone[1]])
    return {
        **measured,
        "loop_mb_s": size / _fifth(linked),
        "slow_down": _fifth(linked) / reference - 1,
        "spread": abs(_fifth(alone[0]) / _fifth(alone[1]) - 1),
    }


def _throughput(client: RankClient, size: float, seconds: float) -> dict[str, float]:
    batches, cpu, user, began = 0, time.process_time(), _receiver_user_s(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(client)
        batches += 1
    took, cpu, user = time.perf_counter() - began, time.process_time() - cpu, _receiver_user_s() - user
    return {
        "batch_mb": size,
        "mb_s": batches * size / took,
        "cpu_ms_per_batch": 1000 * cpu / batches,
        "interpreter_share": user / batches * RATE_MB_S / size,
    }


def _receiver_user_s() -> float:
    """Return the CPU time that the receiving thread has spent outside the kernel: at most then it holds the lock."""
    receiver = next(thread for thread in threading.enumerate() if thread.name.startswith("msd-rank"))
    fields = Path(f"/proc/self/task/{receiver.native_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def _loop_length(seconds: float) -> int:
    """Return how many rounds of the loop take so long."""
    rounds = 200_000
    took = min(_timed(rounds) for _ in range(5))
    return max(1, round(rounds * seconds / took))


def _timed(rounds: int) -> float:
    began = time.perf_counter()
    _rounds(rounds)
    return time.perf_counter() - began


def _turns(length: int, turns: int, client: RankClient | None) -> list[float]:
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        if client is not None:
            next(client)
        _rounds(length)
        times.append(time.perf_counter() - began)
    return times


def _fifth(times: list[float]) -> float:
    return statistics.quantiles(times, n=5)[0]


def _rounds(count: int) -> int:
    total = 0
    for number in range(count):
        total += number & 7
    return total


def _table(report: dict[str, Any]) -> str:
    rows = [
        ("received, MB/s", "mb_s", "{:.0f}"),
        ("batch, MB", "batch_mb", "{:.1f}"),
        ("CPU of the rank per batch, ms", "cpu_ms_per_batch", "{:.2f}"),
        ("share of the interpreter at 200 MB/s", "interpreter_share", "{:.2%}"),
        ("a Python loop while receiving, MB/s", "loop_mb_s", "{:.0f}"),
        ("  is slowed down by", "slow_down", "{:.2%}"),
        ("  two halves without differ by", "spread", "{:.2%}"),
    ]
    machine = report["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {report['settings']}",
        f"{'':40}{'unix':>12}{'tcp':>12}",
    ]
    for title, key, form in rows:
        lines.append(f"{title:40}" + "".join(f"{form.format(report[way][key]):>12}" for way in ("unix", "tcp")))
    return "\n".join(lines)


def _started(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=16, help="of a batch")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, about")
    parser.add_argument("--repeats", type=int, default=5, help="blocks of each kind, times two")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
