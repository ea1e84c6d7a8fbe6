"""A loader host as a program: `python poison_host.py FOLDER HARM WHERE KNOWN`, and what its rows give.

Examines rows of which some do harm. A row that is found out is avoided from then on, as a run would have it.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msd.build import build_chains, build_orders, build_precautions, index_all, place_chains
from msd.config import Config
from msd.core.sample import MetaTable, RawSample, SampleId
from msd.loader.loader import SourceLoader
from msd.loader.poison.suspects import Killed, RowsKilled
from msd.loader.processes.pool import TransformProcesses
from msd.sources.open import open_reader
from msd.testing import poison

ROWS = [{"ids": [number] * (number % 5 + 1), "n": number} for number in range(96)]
HARMFUL = (11, 12)
MEMORY = 350 << 20


def config_of(harm: str, where: str) -> Config:
    """Return a run in which some rows do harm."""
    made = unsendable() if harm == "unsendable" else getattr(poison, harm)(*HARMFUL)
    transforms = [made, {"kind": "tokens"}]
    hang_s = 0.5 if harm in ("LoopAt", "HoldAt") else 60.0
    source = {
        "rows": ROWS,
        "transforms": transforms,
        "transform_in": where,
        "shuffle": False,
        "max_epochs": 1,
        "on_error": {"hang_s": hang_s},
    }
    return Config(
        sources={"web": source},
        batch={"sequence_length": 16, "global_batch_size": 2},
        mesh={"dp": 1},
        num_microbatches=1,
        runtime={"host_memory": MEMORY if harm == "EatAt" else None},
    )


def unsendable() -> Callable[[RawSample], RawSample]:
    """Return a function that no other process can be sent, since it holds a lock."""
    harm, lock = poison.KillAt(*HARMFUL), threading.Lock()

    def locked(sample: RawSample) -> RawSample:
        with lock:
            return harm(sample)

    return locked


def given_by(loader: SourceLoader, tables: Sequence[MetaTable]) -> list[Any]:
    """Return what became of each row, and its tokens."""
    found: list[Any] = []
    for table in tables:
        for row, outcome in enumerate(table.outcome_R.tolist()):
            ids = [SampleId("web", table.start + row, part) for part in range(int(table.num_parts_R[row]))]
            slab = loader.fetch(ids)
            found.append([int(outcome), [slab.sample(one).tokens_T.tolist() for one in ids]])
    return found


def main(folder: str, harm: str, where: str, known: str) -> None:
    """Print, as JSON lines, what is found out, and what the rows give when all is known."""
    config = config_of(harm, where)
    orders = build_orders(config, index_all(config))
    precautions = build_precautions(config, Path(folder))
    suspects = precautions.suspects
    processes = TransformProcesses(2, memory=precautions.memory)
    with contextlib.closing(precautions), contextlib.closing(processes):
        chains = place_chains(config, build_chains(config), processes, precautions, num_cores=2)
        loader = SourceLoader(
            order=orders["web"],
            reader=open_reader("web", config.sources["web"], orders["web"].blocks),
            chain=chains["web"],
            total_ordinals=len(ROWS),
            suspects=suspects,
        )
        killed, ended = json.loads(known)
        for news in suspects.news(0)[1]:
            if isinstance(news, Killed):
                print(json.dumps({"killed": news.ordinal, "how": news.how}), flush=True)
                killed.append(news.ordinal)
            else:
                print(json.dumps({"ended": [ordinal for _, ordinal in news.rows]}), flush=True)
        suspects.isolate([("web", ordinal) for ordinal in ended])
        for ordinal in killed:
            suspects.avoid("web", ordinal, ordinal, "killed")
        tables: list[MetaTable] = []
        start = 0
        while start < len(ROWS):
            try:
                tables.append(loader.examine(start, 32))
            except RowsKilled as error:
                for row in error.killed:
                    print(json.dumps({"killed": row.ordinal, "how": row.how}), flush=True)
                    suspects.avoid("web", row.ordinal, row.ordinal, "killed")
                continue
            start = tables[-1].end
        failures = [failure.ordinal for table in tables for failure in table.failures]
        print(json.dumps({"given": given_by(loader, tables), "failures": failures}), flush=True)
        loader.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
