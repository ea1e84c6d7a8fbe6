"""Which graph a run follows: the default, or the user's function of (graph, context)."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from msd.core.checks import few
from msd.core.cost import CostFunction
from msd.errors import ConfigError, MsdError, told
from msd.planner.batch_schedule import BatchSchedule, schedule_of
from msd.planner.config import BalanceConfig, BatchConfig, EncoderConfig
from msd.planner.dgraph import DGraph, Strategy
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.place_tree import ClientPlaceTree
from msd.planner.primitives.pack import Limits, Pack
from msd.planner.settings import PlannerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """What the configuration says, for a strategy to use or to replace."""

    schedule: MixtureSchedule
    batch: BatchConfig
    document_multiple: int
    lookahead: int
    num_microbatches: int
    balance: BalanceConfig
    cost: Mapping[str, CostFunction]
    broadcast: tuple[str, ...]
    encoder: EncoderConfig
    batch_schedule: BatchSchedule | None = None
    """Sizes by step; None where all steps have those of `batch`."""


StrategyFunction = Callable[[DGraph, StrategyContext], DGraph]


def default_strategy(graph: DGraph, context: StrategyContext) -> DGraph:
    """Mix, pack, one bucket for each data-parallel coordinate, even out cost, broadcast as configured."""
    return balance_and_broadcast(mix_and_pack(graph, context).distribute("dp"), context)


def mix_and_pack(graph: DGraph, context: StrategyContext, *, apart: int | None = None) -> DGraph:
    """Return the graph with the mixture and packing of the configuration, for strategies that change the layout.

    Args:
        graph: The empty graph.
        context: What the configuration says.
        apart: Samples of at least so many tokens, and shorter ones, fill sequences of their own; see `Pack.apart`.
    """
    batch, sizes = context.batch, context.batch_schedule
    return graph.mix(context.schedule).pack(
        batch.packing.method,
        num_sequences=batch.global_batch_size if sizes is None else sizes.at(0).num_sequences,
        sequence_length=batch.sequence_length,
        document_multiple=context.document_multiple,
        lookahead=context.lookahead,
        objective=batch.packing.objective,
        max_age=batch.packing.max_age,
        limits=Limits(**msgspec.structs.asdict(batch.limits)),
        oversize=batch.oversize,
        schedule=sizes,
        apart=apart,
    )


def balance_and_broadcast(graph: DGraph, context: StrategyContext, modules: Sequence[str] = ()) -> DGraph:
    """Return the graph with the costs, the balance and the broadcast axes of the configuration.

    Args:
        graph: Distributed already.
        context: What the configuration says.
        modules: Only their cost is evened out; none is that of all.
    """
    for module, function in context.cost.items():
        graph = graph.cost(function, module)
    if context.balance.method != "none":
        graph = graph.balance(
            context.balance.method,
            context.balance.across,
            min_gain=context.balance.min_gain,
            objective=context.balance.objective,
            modules=modules,
        )
    for modality in context.balance.align:
        graph = graph.align(modality)
    for axis in context.broadcast:
        graph = graph.broadcast_at(axis)
    return graph


def need_encoder_cost(context: StrategyContext, strategy: str) -> None:
    """Raise `ConfigError` unless the configuration says what images cost."""
    if "encoder" not in context.cost:
        raise ConfigError(
            f"strategy {strategy} needs to know what images cost; set cost.encoder, for instance "
            "{kind: transformer, hidden: 1280, layers: 32, causal: false}"
        )


def configured_schedule(settings: PlannerSettings) -> MixtureSchedule:
    """Return the mixture that the configuration says; a strategy may follow another one."""
    return MixtureSchedule.of(
        [terms.name for terms in settings.sources],
        settings.mixture,
        rows={terms.name: terms.rows_per_epoch for terms in settings.sources},
        num_microbatches=settings.num_microbatches,
    )


def compile_strategy(settings: PlannerSettings) -> Strategy:
    """Return what planning follows.

    Raises:
        ConfigError: If the strategy raises, or returns something else than a complete graph, or one whose buckets and
            microbatches do not divide the sequences of a step.
    """
    function: Callable[..., Any] = default_strategy if settings.strategy is None else settings.strategy
    called = f"strategy {getattr(function, '__qualname__', function)}"
    context = StrategyContext(
        schedule=configured_schedule(settings),
        batch=settings.batch,
        document_multiple=settings.document_multiple,
        lookahead=settings.lookahead,
        num_microbatches=settings.num_microbatches,
        balance=settings.balance,
        cost=settings.cost,
        broadcast=settings.broadcast,
        encoder=settings.encoder,
        batch_schedule=schedule_of(settings.batch, settings.multiple_of),
    )
    _check_options(function, called)
    try:
        graph = function(DGraph.over(ClientPlaceTree(settings.mesh, settings.stages)), context)
        strategy = graph.plan() if isinstance(graph, DGraph) else graph
    except MsdError:
        raise
    except Exception as error:
        options = "".join(f", {name}={value!r}" for name, value in getattr(function, "keywords", {}).items())
        raise ConfigError(f"{called} raised {told(error)}; it is called with (graph, context{options})") from error
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"{called} must return the graph it was given, made longer; it returned {type(graph).__name__}"
        )
    if settings.fields_by_stage and "pp" in strategy.broadcast:
        raise ConfigError(
            "broadcast_at('pp') has the first stage fetch for the others, which fields_by_stage gives other fields; "
            "leave one of the two out"
        )
    if settings.fields_by_stage and strategy.distribute.axis == "world" and settings.mesh.size("pp") > 1:
        raise ConfigError(
            "distribute('world') gives pipeline stages data of their own, of which fields_by_stage would take a part "
            "away; leave one of the two out"
        )
    _check_sources(strategy.mix.schedule, settings)
    _check_sizes(strategy.pack, len(strategy.distribute.consumers(strategy.tree)) * settings.num_microbatches)
    return strategy


def _check_sources(schedule: MixtureSchedule, settings: PlannerSettings) -> None:
    """Raise `ConfigError` unless a strategy's schedule is one of all sources of the run."""
    names = tuple(sorted(terms.name for terms in settings.sources))
    if schedule.names != names:
        raise ConfigError(
            f"mix: its schedule is over {few(schedule.names)}, the run's sources are {few(names)}; start "
            "from context.schedule, or make one over all of them"
        )


def _check_sizes(pack: Pack, rows: int) -> None:
    """Raise `ConfigError` unless every step's sequences divide into `rows`, and every length into documents."""
    schedule = pack.schedule
    setting, size = "global_batch_size", pack.num_sequences
    if schedule is not None:
        setting, size = "multiple_of", schedule.multiple_of
    if size % rows:
        raise ConfigError(
            f"batch.{setting} {size} does not divide into {rows} rows (buckets * microbatches); set it to a multiple "
            f"of {rows}"
        )
    for length in (pack.sequence_length,) if schedule is None else schedule.lengths:
        whole = length // pack.document_multiple * pack.document_multiple
        if length != whole:
            raise ConfigError(
                f"batch.sequence_length {length} is not a multiple of document_multiple {pack.document_multiple}; set "
                f"it to {whole}"
            )


def _check_options(function: Callable[..., Any], called: str) -> None:
    """Raise `ConfigError` if a strategy has not an option that it is given, or needs one that it is not."""
    chosen, given = getattr(function, "func", function), getattr(function, "keywords", {})
    try:
        parameters = list(inspect.signature(chosen).parameters.values())
    except (TypeError, ValueError):  # What is not written in Python may not say.
        return
    options = {
        each.name: each
        for each in parameters[2 + len(getattr(function, "args", ())) :]
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    takes_any = any(each.kind == each.VAR_KEYWORD for each in parameters)
    for name in given:
        if name not in options and not takes_any:
            takes = f"it takes {', '.join(options)}" if options else "it takes none"
            near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
            raise ConfigError(f"{called} has no option {name!r}; {f'did you mean {near[0]!r}?' if near else takes}")
    for name, option in options.items():
        if option.default is option.empty and name not in given:
            raise ConfigError(
                f"{called} needs the option {name!r}; write strategy: {{function: ..., options: {{{name}: ...}}}}"
            )
