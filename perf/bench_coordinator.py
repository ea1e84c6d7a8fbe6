"""What deciding a step costs the coordinator, the planner's own time not counted.

    python perf/bench_coordinator.py [--ranks 4096] [--sources 300] [--constructors 512] [--steps 5]

Prints one JSON line per way of feeding the events of a step: all at once, in 64 batches, one by one.
"""

import argparse
import json
import time

from msd.coordinator import Coordinator, deal
from msd.coordinator.commands import Assign, Command, Examine
from msd.coordinator.events import RowsExamined, StepAsked
from msd.core.mesh import Mesh
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.planner.planner import Planner, Starved
from msd.testing.blocks import made_up_blocks
from msd.testing.tables import Row, row, settings_of, table_of


class TimedPlanner(Planner):
    """Counts the seconds that planning takes, and taking in metadata."""

    seconds = 0.0

    def plan(self) -> StepPlan | Starved | None:
        """Plan, and count."""
        began = time.perf_counter()
        try:
            return super().plan()
        finally:
            TimedPlanner.seconds += time.perf_counter() - began

    def observe(self, table: MetaTable) -> None:
        """Observe, and count."""
        began = time.perf_counter()
        super().observe(table)
        TimedPlanner.seconds += time.perf_counter() - began


def drive(coordinator: Coordinator, sources: dict[str, list[Row]], commands: list[Command]) -> tuple[float, int]:
    """Answer what is asked until nothing is; return the seconds spent deciding and the assigned steps."""
    seconds, assigned = 0.0, 0
    while commands:
        assigned += sum(isinstance(command, Assign) for command in commands)
        answers = []
        for command in commands:
            if isinstance(command, Examine):
                rows = sources[command.source]
                chosen = [rows[n % len(rows)] for n in range(command.start, command.start + command.num_rows)]
                answers.append(RowsExamined(command.host, (table_of(command.source, command.start, chosen),)))
        if not answers:
            break
        began = time.perf_counter()
        commands = coordinator.handle_all(answers)
        seconds += time.perf_counter() - began
    return seconds, assigned


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--sources", type=int, default=300)
    parser.add_argument("--constructors", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    dp = given.ranks // 8
    names = [f"s{number:03d}" for number in range(given.sources)]
    sources = {name: [row(100 + 7 * ((n * 31 + i) % 90)) for n in range(200)] for i, name in enumerate(names)}
    orders = {
        name: SourceOrder(seed=1, source=name, blocks=made_up_blocks([20] * 10), shuffle=True, window_blocks=3)
        for name in names
    }
    settings = settings_of(
        sources, sequence_length=2048, global_batch_size=dp, mesh=Mesh.of(dp=dp, tp=8), num_microbatches=1
    )

    def new_planner(state: StateDict | None) -> Planner:
        planner = TimedPlanner(settings)
        if state is not None:
            planner.load_state_dict(state)
        return planner

    per = given.ranks // given.constructors
    coordinator = Coordinator(
        new_planner=new_planner,
        orders=orders,
        totals=dict.fromkeys(names),
        placement=deal(dict.fromkeys(names, 2), [f"host-{n}" for n in range(8)]),
        constructors={f"c{n}": tuple(range(n * per, (n + 1) * per)) for n in range(given.constructors)},
    )
    began = time.perf_counter()
    drive(coordinator, sources, coordinator.begin())
    sessions = []
    for rank in range(given.ranks):
        session, commands = coordinator.connect(rank)
        drive(coordinator, sources, commands)
        sessions.append(session)
    print(json.dumps({"ready_s": round(time.perf_counter() - began, 2)}))
    step = 0
    for batches in (1, 64, given.ranks):
        TimedPlanner.seconds, total, handed = 0.0, 0.0, 0
        for _ in range(given.steps):
            step += 1
            asked = [StepAsked(rank, sessions[rank], 0, step) for rank in range(given.ranks)]
            size = given.ranks // batches
            for first in range(0, given.ranks, size):
                began = time.perf_counter()
                commands = coordinator.handle_all(asked[first : first + size])
                total += time.perf_counter() - began
                seconds, assigned = drive(coordinator, sources, commands)
                total += seconds
                handed += assigned
        deciding = 1e3 * (total - TimedPlanner.seconds) / given.steps
        print(
            json.dumps(
                {
                    "batches": batches,
                    "ms_a_step": round(deciding, 1),
                    "planning_ms_a_step": round(1e3 * TimedPlanner.seconds / given.steps, 1),
                    "assigned": handed // given.steps,
                }
            )
        )


if __name__ == "__main__":
    main()
