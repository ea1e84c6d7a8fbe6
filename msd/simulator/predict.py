"""Plan the first steps of a run several ways and predict what each takes."""

from collections.abc import Iterator, Mapping
from typing import Any

from msd.build import build_loaders, build_orders, build_planner, index_all, next_plan
from msd.config import Config
from msd.config.decode import decode
from msd.core.checks import whole_number
from msd.core.cost import CostFunction
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.errors import ConfigError, InputError
from msd.loader.loader import SourceLoader
from msd.simulator.assign import ASSIGNMENTS, Assignment, Grid, by_tokens, dealt, from_plan, hybrid, length_groups
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
        config = config.replace(mesh={**dict.fromkeys(config.mesh, 1), **assumed.mesh})
    assumed.shares(config.place.size("pp"))
    outcomes: list[Outcome] = []
    tokens: dict[str, int] = {}
    with _Planned(config) as planned:
        costs, speeds = planned.costs, _speeds(assumed, planned.costs)
        for plans in planned.steps(steps):
            last = plans["planned"]
            outcomes += _outcomes(plans, work_of(last, costs), assumed, speeds)
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


def _variants(config: Config) -> dict[str, Config]:
    """Return the configurations whose layouts are compared; all of them give the same samples to each step."""
    return {
        "planned": config,
        "packed": config.replace(strategy="default", balance={"method": "none"}),
        "backbone": config.replace(strategy="default", cost={"backbone": config.cost["backbone"]}),
    }


def _assignments(plans: Mapping[str, StepPlan], work: StepWork, grid: Grid, trainer: Trainer) -> Iterator[Assignment]:
    made = {name: from_plan(name, plan) for name, plan in plans.items()}
    made |= {one.name: one for one in (dealt(work, grid), length_groups(work, grid), by_tokens(work, grid))}
    if trainer.encoder == "every_rank" and len(work.encoder_I):
        made["hybrid"] = hybrid(made["backbone"], work, grid)
    return (made[name] for name in ASSIGNMENTS if name in made)


class _Planned:
    """The plans of a run and of its variants, every row examined once."""

    def __init__(self, config: Config) -> None:
        variants = _variants(config)
        orders = build_orders(config, index_all(config))
        self._planners = {name: build_planner(variant, orders) for name, variant in variants.items()}
        self._loaders = build_loaders(config, orders)
        self._tables = {name: _SharedTables(one, readers=len(variants)) for name, one in self._loaders.items()}

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


class _SharedTables:
    """Metadata of a source for several planners that ask for the same rows in the same order."""

    def __init__(self, loader: SourceLoader, *, readers: int) -> None:
        self._loader = loader
        self._readers = readers
        self._held: dict[tuple[int, int], tuple[MetaTable, int]] = {}

    def examine(self, start: int, num_rows: int) -> MetaTable:
        key = (start, num_rows)
        table, left = self._held.pop(key, (None, self._readers))
        if table is None:
            table = self._loader.examine(start, num_rows)
        if left > 1:
            self._held[key] = (table, left - 1)
        return table
