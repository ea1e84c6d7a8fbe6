"""Config in, objects out: the one place that picks implementations."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

import msgspec

from msd.config import PipelineConfig, import_dotted
from msd.config.identity import FEEDBACK
from msd.config.strategy import strategy_of
from msd.config.written import image_cut, written_of
from msd.constructor.constructor import DataConstructor
from msd.constructor.images import dummy_images
from msd.coordinator import Coordinator, Placement, StallTerms, Standing
from msd.core.index import BlockTable
from msd.core.mesh import Mesh
from msd.core.order import SourceOrder, auto_window_blocks
from msd.core.plan import StepPlan
from msd.core.sample import Failure
from msd.core.state import StateDict
from msd.core.unbounded import UnboundedOrder
from msd.cost.analytic import build_cost
from msd.errors import ConfigError
from msd.loader.admitted import AdmittedRows
from msd.loader.buffer import BufferPool
from msd.loader.ledgers import admitted_rows, expect_ledgers, unbounded_order
from msd.loader.loader import SourceLoader
from msd.loader.poison.precautions import Precautions
from msd.loader.poison.suspects import Suspects
from msd.loader.processes.chain import placed
from msd.loader.processes.pool import TransformProcesses
from msd.loader.processes.recipe import ChainRecipe
from msd.loader.transforms.chain import AppliesTransforms, TransformChain
from msd.planner.config import MixtureConfig
from msd.planner.planner import Planner, Starved
from msd.planner.settings import PlannerSettings, SourceTerms
from msd.sources.base import BlockReader
from msd.sources.index import IndexProgress, index_sources
from msd.sources.open import open_reader

PAYLOAD_BYTES = 512 << 20
"""Payload that the loaders of one process hold in all; what is dropped is made again from its address."""


def index_all(
    config: PipelineConfig,
    *,
    workers: int | None = None,
    on_progress: Callable[[IndexProgress], None] | None = None,
) -> dict[str, BlockTable]:
    """Return the index of every source, from the cache where the data has not changed."""
    return index_sources(config.sources, workers=workers, on_progress=on_progress)


def build_orders(
    config: PipelineConfig, tables: Mapping[str, BlockTable], *, consumes: bool = False
) -> dict[str, SourceOrder]:
    """Return the sequence of every source.

    Args:
        config: The configuration.
        tables: The index of every source; those without an end have none.
        consumes: Whether rows may be taken from queues.

    Raises:
        ConfigError: If the class of a queue cannot be imported.
        SourceError: If a ledger is damaged, or of another source.
    """
    orders: dict[str, SourceOrder] = {}
    for name, source in config.sources.items():
        window = source.window
        if source.is_unbounded:
            orders[name] = unbounded_order(name, source, seed=config.seed, consumes=consumes)
            continue
        orders[name] = SourceOrder(
            seed=config.seed,
            source=name,
            blocks=tables[name],
            shuffle=source.is_shuffled,
            window_blocks=auto_window_blocks(tables[name]) if window == "auto" else window,
        )
    return orders


def build_chains(config: PipelineConfig) -> dict[str, TransformChain]:
    """Return the transforms of every source.

    Raises:
        ConfigError: If a tokenizer, function or image geometry cannot be used, or sources disagree about images.
    """
    chains = {name: build_chain_of(config, name) for name in config.sources}
    check_alike(chains)
    return chains


def build_chain_of(config: PipelineConfig, name: str) -> TransformChain:
    """Return the transforms of one source.

    Raises:
        ConfigError: If a tokenizer, function or image geometry cannot be used.
    """
    try:
        return _recipe(config, name).build()
    except ConfigError as error:
        raise ConfigError(_prefixed(str(error), name)) from None


def place_chains(
    config: PipelineConfig,
    chains: Mapping[str, TransformChain],
    processes: TransformProcesses,
    precautions: Precautions,
    *,
    num_cores: int,
    divided: Callable[[str, AppliesTransforms], AppliesTransforms] | None = None,
    counted: Callable[[str, AppliesTransforms], AppliesTransforms] | None = None,
) -> dict[str, AppliesTransforms]:
    """Return the transforms of every source, to run where its configuration says.

    Args:
        config: The run's configuration.
        chains: From `build_chains`; they have not been used yet.
        processes: Of this host; started when a source needs them.
        precautions: Of this host, against rows that end or hang it.
        num_cores: That this host has for itself.
        divided: Returns the transforms of a source, done by several workers at once; None leaves batches whole.
        counted: Returns the transforms of a source with what they take counted, for rows that are not divided.

    Raises:
        ConfigError: If transforms are to run in processes and cannot be sent there.
    """
    found: dict[str, AppliesTransforms] = {}
    for name, chain in chains.items():
        source, recipe = config.sources[name], _recipe(config, name)
        where = placed(
            precautions.noted(chain),
            recipe,
            processes,
            transform_in=source.transform_in,
            num_cores=num_cores,
            hang_s=source.on_error.hang_s,
            divided=None if divided is None else partial(divided, name),
            counted=None if counted is None else partial(counted, name),
        )
        found[name] = precautions.guarded(chain, recipe, where)
    return found


def build_precautions(config: PipelineConfig, folder: Path) -> Precautions:
    """Return what keeps a loader host from being ended by one row after the other; see `Precautions`.

    Args:
        config: The run's configuration.
        folder: Of the run's crash notes on this machine.
    """
    memory = config.runtime.host_memory
    assert not isinstance(memory, str), "a size is a number once it was checked"
    hang_s = {name: source.on_error.hang_s for name, source in config.sources.items()}
    return Precautions(folder, hang_s, memory=memory)


def _recipe(config: PipelineConfig, name: str) -> ChainRecipe:
    source = config.sources[name]
    return ChainRecipe(
        source=name,
        transforms=source.transforms,
        seed=config.seed,
        sequence_length=config.longest_sequence,
        overflow=source.overflow,
        written=written_of(config, name),
    )


def build_loaders(
    config: PipelineConfig,
    orders: Mapping[str, SourceOrder],
    chains: Mapping[str, TransformChain] | None = None,
    *,
    suspects: Suspects | None = None,
) -> dict[str, SourceLoader]:
    """Return a loader for every source; together they hold at most `PAYLOAD_BYTES`."""
    suspects = Suspects() if suspects is None else suspects
    chains = build_chains(config) if chains is None else chains
    pool = BufferPool(PAYLOAD_BYTES, len(config.sources))
    loaders: dict[str, SourceLoader] = {}
    try:
        for name in config.sources:
            loaders[name] = build_loader(
                config, orders[name], chains[name], buffer_bytes=PAYLOAD_BYTES, read_bytes=_read_share(config),
                pool=pool, suspects=suspects,
            )  # fmt: skip
    except BaseException:
        for loader in loaders.values():
            loader.close()
        raise
    return loaders


def build_loader(
    config: PipelineConfig,
    order: SourceOrder,
    chain: AppliesTransforms,
    *,
    buffer_bytes: int,
    read_bytes: int | None = None,
    pool: BufferPool | None = None,
    suspects: Suspects | None = None,
) -> SourceLoader:
    """Return a loader for one source; several of one source may divide its windows."""
    source = config.sources[order.source]
    reader: BlockReader | AdmittedRows
    if isinstance(order, UnboundedOrder):
        reader = admitted_rows(order, read_bytes=buffer_bytes // 4 if read_bytes is None else read_bytes)
    else:
        reader = open_reader(order.source, source, order.blocks)
    return SourceLoader(
        order=order,
        reader=reader,
        chain=chain,
        total_ordinals=order.total_ordinals(config.max_epochs(order.source)),
        buffer_bytes=buffer_bytes,
        read_bytes=read_bytes,
        pool=pool,
        suspects=suspects,
    )


def build_planner(config: PipelineConfig, orders: Mapping[str, SourceOrder], mesh: Mesh | None = None) -> Planner:
    """Return the planner of a run, for the configured mesh or another one."""
    terms = tuple(
        SourceTerms(
            name=name,
            rows_per_epoch=orders[name].rows_per_epoch,
            total_ordinals=orders[name].total_ordinals(config.max_epochs(name)),
            end=config.end_of(name),
            max_rate=source.on_error.max_rate,
            raises=source.on_error.policy == "raise",
            overflow=source.overflow,
            written=written_of(config, name),
        )
        for name, source in config.sources.items()
    )
    return Planner(
        PlannerSettings(
            sources=terms,
            mixture=_with_function(config.mixture),
            batch=config.batch,
            mesh=config.place if mesh is None else mesh,
            num_microbatches=config.num_microbatches,
            document_multiple=config.document_multiple,
            multiple_of=config.multiple_of,
            lookahead=config.lookahead,
            balance=config.balance,
            cost={
                module: build_cost(cost, partial(import_dotted, name=f"cost.{module}"))
                for module, cost in config.cost.items()
            },
            broadcast=tuple(config.broadcast),
            stages=config.stages,
            fields_by_stage=config.fields_by_stage,
            encoder=config.encoder,
            strategy=build_strategy(config),
        )
    )


def build_strategy(config: PipelineConfig) -> Callable[..., Any]:
    """Return the strategy of a run, with its options.

    Raises:
        ConfigError: If there is none where the configuration says.
    """
    chosen, options = strategy_of(config.strategy)
    function = import_dotted(chosen, name="strategy") if isinstance(chosen, str) else chosen
    if not callable(function):
        raise ConfigError(
            f"strategy {chosen!r} is {type(function).__name__}; name a function (graph, context) -> graph"
        )
    return update_wrapper(partial(function, **options), function) if options else function


def build_constructor(config: PipelineConfig) -> DataConstructor:
    """Return the constructor of a run."""
    cut = image_cut(config)
    return DataConstructor(
        pad_token_id=config.batch.pad_token_id,
        dummy=None if cut is None else dummy_images(patch=cut[0], merge=cut[1]),
    )


def build_coordinator(
    config: PipelineConfig,
    orders: Mapping[str, SourceOrder],
    *,
    placement: Placement,
    constructors: Mapping[str, tuple[int, ...]],
    depth: int,
    ahead_bytes: int = PAYLOAD_BYTES // 2,
    held_bytes: int = 256 << 20,
    shadows: Iterable[str] = (),
    standing: Standing | None = None,
) -> Coordinator:
    """Return the coordinator of a run; see `msd.coordinator.Coordinator`."""

    def new_planner(progress: StateDict | None) -> Planner:
        planner = build_planner(config, orders)
        if progress is not None:
            planner.load_state_dict(progress)
            expect_ledgers(orders, progress)
        return planner

    return Coordinator(
        new_planner=new_planner,
        orders=orders,
        totals={name: orders[name].total_ordinals(config.max_epochs(name)) for name in config.sources},
        placement=placement,
        constructors=constructors,
        depth=depth,
        ahead_bytes=ahead_bytes,
        held_bytes=held_bytes,
        shadows=shadows,
        stalls={
            name: StallTerms(source.on_stall.after_s, source.on_stall.then) for name, source in config.sources.items()
        },
        deadline_s=config.runtime.deadline_s,
        standing=standing,
    )


def _with_function(mixture: MixtureConfig) -> MixtureConfig:
    """Return a mixture whose feedback is a function, not the path of one."""
    feedback = mixture.feedback
    if feedback is None or not isinstance(feedback.function, str):
        return mixture
    function = import_dotted(feedback.function, name=FEEDBACK)
    if not callable(function):
        raise ConfigError(
            f"{FEEDBACK} {feedback.function!r} is {type(function).__name__}; name a function "
            "(shares, losses, step) -> weights"
        )
    return msgspec.structs.replace(mixture, feedback=msgspec.structs.replace(feedback, function=function))


def plan_steps(
    planner: Planner, loaders: Mapping[str, SourceLoader], *, steps: int | None = None
) -> Iterator[StepPlan]:
    """Yield the next plans of a planner, examining rows as it asks for them."""
    num_planned = 0
    while steps is None or num_planned < steps:
        plan = next_plan(planner, loaders)
        if plan is None:
            return
        yield plan
        num_planned += 1


def next_plan(
    planner: Planner,
    loaders: Mapping[str, SourceLoader],
    *,
    on_failures: Callable[[str, tuple[Failure, ...]], None] | None = None,
) -> StepPlan | None:
    """Return the planner's next plan, or None when the run has ended.

    Args:
        planner: Stands at the step to plan.
        loaders: By source.
        on_failures: Called with the source and the rows that failed, as they are met.
    """
    examined: dict[str, int] = {}
    while True:
        outcome = planner.plan()
        if not isinstance(outcome, Starved):
            return outcome
        # A source that is asked again within one step is drawn from often: look further ahead each time.
        num_rows = examined[outcome.source] = min(512, 2 * examined.get(outcome.source, 8))
        table = loaders[outcome.source].examine(outcome.ordinal, num_rows)
        if table.failures and on_failures is not None:
            on_failures(outcome.source, table.failures)
        planner.observe(table)


def _read_share(config: PipelineConfig) -> int:
    """Return the raw rows that one source may hold ahead."""
    return max(1 << 20, PAYLOAD_BYTES // (4 * max(1, len(config.sources))))


def check_alike(chains: Mapping[str, TransformChain]) -> None:
    """Raise `ConfigError` unless all sources cut images alike and mark them with one placeholder.

    Sources beside one that was packed before must have its tokenizer.
    """
    for packed, those in chains.items():
        for name, these in chains.items() if those.is_packed and those.tokenizers else ():
            if not set(these.tokenizers) <= set(those.tokenizers):
                raise ConfigError(
                    f"sources.{name}: its tokens are of another tokenizer than those of the packed source {packed!r}; "
                    f"name the tokenizer that {packed!r} was written with, or write that folder again with `msd run`"
                )
    seen: dict[str, tuple[str, Any]] = {}
    for name, chain in chains.items():
        for what in ("patch", "merge", "image_token"):
            value = getattr(chain, what)
            if value is None:
                continue
            first, known = seen.setdefault(what, (name, value))
            if known != value:
                raise ConfigError(
                    f"sources.{name}: image {what} is {value}, but source {first!r} has {known}; one model sees "
                    f"the images of all sources: set the same {what} in both"
                )


def _prefixed(message: str, name: str) -> str:
    where = f"sources.{name}"
    return message if message.startswith(where) else f"{where}: {message}"
