"""What a loader of a source holds, measured in a process that has nothing else.

As a program: reads a configuration from standard input, and writes a line of JSON for each source.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from msd.build import build_chain_of, build_loader
from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.loader.processes.root import own_bytes

ROWS = 64
BUFFER_BYTES = 4 << 20
"""Payload that a loader of a host with many sources may hold."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of memory."""

    process: int
    """Of a process before it holds any loader."""
    loaders: Mapping[str, int]
    """By source, what its loader added, whatever it shares with those before."""


def measure(config: PipelineConfig, orders: Mapping[str, SourceOrder], *, deadline_s: float) -> Held | None:
    """Return what loaders hold, None if that cannot be measured in time."""
    command = [sys.executable, "-m", "msd.profiling.memory"]
    packed = cloudpickle.dumps((config, dict(orders)))
    try:
        done = subprocess.run(command, input=packed, capture_output=True, timeout=deadline_s, check=True)
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Held(lines[0]["process"], {line["source"]: line["bytes"] for line in lines[1:]})


def main() -> None:
    """Measure, source by source."""
    config, orders = cloudpickle.loads(sys.stdin.buffer.read())
    held = own_bytes()
    _tell({"process": held})
    loaders = []
    for name in config.sources:
        try:
            chain = build_chain_of(config, name)
            loader = build_loader(config, orders[name], chain, buffer_bytes=BUFFER_BYTES)
            loaders.append(loader)
            if orders[name].rows_per_epoch:
                loader.examine(0, ROWS)
        except Exception:
            continue  # Whoever profiles it hears why.
        now = own_bytes()
        _tell({"source": name, "bytes": max(0, now - held)})
        held = max(held, now)


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
