"""Plan the first steps of a run several ways and predict what each takes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from msd.build import build_loaders, build_orders, build_planner, index_all, next_plan
from msd.config import Config
from msd.config.decode import decode
from msd.core.checks import whole_number
from msd.core.cost import CostFunction
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.errors import ConfigError, InputError
from msd.loader.loader import SourceLoader
from msd.planner.dgraph import DGraph
from msd.planner.planner import Planner
from msd.planner.primitives.align import Align
from msd.planner.primitives.balance import Balance
from msd.planner.primitives.cost import Cost
from msd.planner.primitives.encode import Encode
from msd.planner.primitives.gather import Gather
from msd.planner.strategy import StrategyContext
from msd.simulator.assign import ASSIGNMENTS, Assignment, Grid, by_tokens, dealt, from_plan, length_groups
from msd.simulator.report import Outcome, Simulation
from msd.simulator.step_time import Speeds, even_step_s, step_time
from msd.simulator.trainer import DEFAULT_FLOPS_PER_S, Trainer
from msd.simulator.work import StepWork, work_of


def simulate(
    config: Config,
    trainer: Trainer | Mapping[str, Any] | None = None,
    *,
    steps: int = 10,
) -> Simulation:
    """Predict the step time of a run under its plans, and under the assignments it is compared with.

    Rows are examined as a run would examine them, so lengths and image sizes are real; plans are those of the run. No
    GPU, cluster or rank is needed, whatever the mesh.

    Args:
        config: The configuration; its `cost` says what a document costs each module.
        trainer: What is assumed of the machine, the mesh included; None is `Trainer()`.
        steps: Steps to plan; figures are means over them.

    Raises:
        ConfigError: If the configuration, the trainer or an argument cannot mean anything.
        InputError: If the data ends before its first step.
        SourceError: If a source cannot be read.
    """
    if whole_number(steps, name="steps") < 1:
        raise ConfigError(f"steps must be 1 or more, got {steps}")
    assumed: Trainer = decode({} if trainer is None else trainer, Trainer, "trainer")
    if assumed.mesh is not None:
        config = config.on_mesh(assumed.mesh)
    assumed.shares(config.place.size("pp"))
    outcomes: list[Outcome] = []
    tokens: dict[str, int] = {}
    with _Planned(config) as planned:
        costs, speeds = planned.costs, _speeds(assumed, planned.costs)
        for plans in planned.steps(steps):
            last = plans["planned"]
            outcomes += _outcomes(plans, work_of(plans.get("hybrid", last), costs), assumed, speeds)
            for name, number in last.report.tokens_by_source.items():
                tokens[name] = tokens.get(name, 0) + number
    if not outcomes:
        raise InputError("the data ends before its first step; lower batch.global_batch_size, or give more of it")
    return Simulation(
        mesh=last.mesh,
        num_microbatches=last.num_microbatches,
        row_tokens=last.row_length,
        trainer=assumed,
        speeds=speeds,
        costs={module: str(cost) for module, cost in costs.items()},
        drawn={name: tokens.get(name, 0) for name in config.sources},
        outcomes=tuple(outcomes),
    )


def _outcomes(plans: Mapping[str, StepPlan], work: StepWork, trainer: Trainer, speeds: Speeds) -> Iterator[Outcome]:
    grid, step = Grid.of(plans["planned"]), plans["planned"].step
    even_s = even_step_s(work, grid, trainer, speeds)
    for assignment in _assignments(plans, work, grid, trainer):
        time, cost_MB = step_time(work, assignment, grid, trainer, speeds)
        yield Outcome(step=step, name=assignment.name, time=time, even_s=even_s, cost_MB=cost_MB)


def _speeds(trainer: Trainer, costs: Mapping[str, CostFunction]) -> Speeds:
    backbone = trainer.flops_per_s or getattr(costs["backbone"], "flops_per_s", None) or DEFAULT_FLOPS_PER_S
    own = getattr(costs.get("encoder"), "flops_per_s", None)
    return Speeds(backbone, trainer.encoder_flops_per_s or (None if trainer.flops_per_s else own) or backbone)


def _assignments(plans: Mapping[str, StepPlan], work: StepWork, grid: Grid, trainer: Trainer) -> Iterator[Assignment]:
    made = {name: from_plan(name, plan) for name, plan in plans.items()}
    made |= {one.name: one for one in (dealt(work, grid), length_groups(work, grid), by_tokens(work, grid))}
    if trainer.encoder == "first_stage":
        # No rank but those of the first stage has an encoder.
        made = {name: one for name, one in made.items() if name == "planned" or one.encoding is None}
    return (made[name] for name in ASSIGNMENTS if name in made)


def _variants(graph: DGraph, costs: Mapping[str, CostFunction]) -> dict[str, DGraph]:
    """Return graphs that give every step the same samples as this one, and lay them out otherwise."""
    known = next((op for op in graph.ops if isinstance(op, Balance)), None) or Balance()
    packed = DGraph(graph.tree, tuple(op for op in graph.ops if not isinstance(op, Balance | Gather | Align | Encode)))
    for module in costs.keys() - {op.module for op in graph.ops if isinstance(op, Cost)}:
        packed = packed.cost(costs[module], module)

    def balanced(*modules: str) -> DGraph:
        method = "lpt" if known.method == "none" else known.method
        return packed.balance(method, cast(Any, known.across), objective=known.objective, modules=modules)

    if "encoder" not in costs:
        return {"packed": packed}
    backbone = balanced("backbone")
    return {"packed": packed, "backbone": backbone, "joint": balanced(), "hybrid": backbone.encode("world")}


class _Planned:
    """The plans of a run and of its variants, every row examined once."""

    def __init__(self, config: Config) -> None:
        orders = build_orders(config, index_all(config))
        planned = build_planner(config, orders)
        variants = _variants(planned.strategy.graph, planned.settings.cost)
        self._planners = {"planned": planned} | {
            name: Planner(replace(planned.settings, strategy=partial(_given, variant)))
            for name, variant in variants.items()
        }
        self._loaders = build_loaders(config, orders)
        self._tables = {name: SharedTables(one, readers=len(self._planners)) for name, one in self._loaders.items()}

    @property
    def costs(self) -> Mapping[str, CostFunction]:
        """What a document costs, by module."""
        return self._planners["planned"].settings.cost

    def steps(self, num_steps: int) -> Iterator[dict[str, StepPlan]]:
        """Yield the plans of each step by variant, as far as the data goes."""
        for _ in range(num_steps):
            plans = {
                name: next_plan(planner, self._tables)  # type: ignore[arg-type]
                for name, planner in self._planners.items()
            }
            if any(plan is None for plan in plans.values()):
                return
            yield {name: plan for name, plan in plans.items() if plan is not None}

    def __enter__(self) -> "_Planned":
        return self

    def __exit__(self, *exception: object) -> None:
        for loader in self._loaders.values():
            loader.close()


def _given(chosen: DGraph, graph: DGraph, context: StrategyContext) -> DGraph:
    """Strategy that is one graph."""
    return chosen


class SharedTables:
    """Metadata of a source for several planners that ask for the same rows in the same order."""

    def __init__(self, loader: SourceLoader, *, readers: int) -> None:
        """Hold what so many planners will ask for."""
        self._loader = loader
        self._readers = readers
        self._held: dict[tuple[int, int], tuple[MetaTable, int]] = {}

    @property
    def num_held(self) -> int:
        """Tables that a planner has still to ask for."""
        return len(self._held)

    def examine(self, start: int, num_rows: int) -> MetaTable:
        """Return what is known of rows, examined when the first planner asks."""
        key = (start, num_rows)
        table, left = self._held.pop(key, (None, self._readers))
        if table is None:
            table = self._loader.examine(start, num_rows)
        if left > 1:
            self._held[key] = (table, left - 1)
        return table
