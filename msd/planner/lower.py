"""From what a step holds to where everything goes: sequences of pieces in, a `StepPlan` out."""

# D = documents of the step. U = units that a layout moves, see `wholes`. S = sequences. B = buckets. M = slots.

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.mesh import Mesh
from msd.core.plan import PlanReport, StepPlan
from msd.core.slices import SliceMethod
from msd.core.state import StateDict
from msd.core.written import Written
from msd.errors import InputError
from msd.planner.dgraph import Strategy
from msd.planner.floors import capped_imbalance_floor, excess, imbalance_floor, lockstep_floor
from msd.planner.piece import Piece
from msd.planner.primitives.align import dummies
from msd.planner.primitives.balance import Balance, balance
from msd.planner.primitives.cost import Cost, scaled
from msd.planner.primitives.encode import Images
from msd.planner.primitives.gather import balance_gathered
from msd.planner.primitives.layout import Grid, Layout, Limit, packed_layout
from msd.planner.primitives.objective import pipeline_time
from msd.planner.primitives.pack import Limits
from msd.planner.settings import PlannerSettings
from msd.planner.wholes import Units

_MAX_ROW_TOKENS = (1 << 31) - 1
"""Offsets in a row are int32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Membership:
    """What a step holds, whatever the mesh."""

    step: int
    source_names: tuple[str, ...]
    sequences: Sequence[Sequence[Piece]]
    progress: StateDict
    notes: tuple[str, ...] = ()
    num_repeated: int = 0
    """Documents that `last: repeat_tail` placed once more; the last ones of their sequences."""
    is_last: bool = False
    written: Mapping[int, tuple[Written, int]] = field(default_factory=dict)
    """Of sources whose rows were packed before, by index: what they were packed with, and rows of an epoch."""
    columns: Int64Array = field(init=False)
    """[D, 9]: the first fields of the `Piece` of each document, sequence after sequence."""

    def __post_init__(self) -> None:
        fields = itertools.chain.from_iterable(piece[:9] for piece in self._documents)
        object.__setattr__(self, "columns", np.fromiter(fields, dtype=np.int64).reshape(-1, 9))

    @property
    def _documents(self) -> Iterator[Piece]:
        pieces = itertools.chain.from_iterable(self.sequences)
        return itertools.chain.from_iterable(piece.documents for piece in pieces) if self.written else pieces

    def images(self, cost: Cost) -> Images:
        """Return the images of the step, one by one, each with what it costs."""
        sizes = [piece.patches_of_images for piece in self._documents]
        num_patches_I = np.array([patches for held in sizes for patches in held], dtype=np.int64)
        return Images(
            document_I=np.repeat(np.arange(len(sizes)), [len(held) for held in sizes]),
            num_patches_I=num_patches_I,
            cost_I=cost.of(num_patches_I, num_patches_I),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a layout is for."""

    mesh: Mesh
    consumers_B: tuple[tuple[int, ...], ...]
    num_microbatches: int
    slice_axis: str | None
    slice_method: SliceMethod
    fields_P: tuple[tuple[str, ...], ...] | None

    @classmethod
    def of(cls, settings: PlannerSettings, strategy: Strategy) -> "Place":
        """Return the ranks that a strategy feeds, and what each of them receives."""
        tree, batch = strategy.tree, settings.batch
        is_sliced = batch.slice != "none" and tree.mesh.size("cp") > 1 and strategy.distribute.slices_rows
        return cls(
            mesh=tree.mesh,
            consumers_B=strategy.distribute.consumers(tree),
            num_microbatches=settings.num_microbatches,
            slice_axis="cp" if is_sliced else None,
            slice_method="headtail" if batch.slice == "headtail" else "zigzag",
            fields_P=tree.fields_by_stage if settings.fields_by_stage else None,
        )


def lower(membership: Membership, strategy: Strategy, place: Place) -> StepPlan:
    """Return the plan of a step: the layout that the strategy chooses for what the step holds."""
    pack = strategy.pack.at(membership.step)
    grid = Grid(
        num_buckets=len(place.consumers_B),
        num_microbatches=place.num_microbatches,
        sequences_per_row=len(membership.sequences) // (len(place.consumers_B) * place.num_microbatches),
        sequence_length=pack.sequence_length,
        num_stages=place.mesh.size("pp"),
    )
    _check_row(membership.step, grid)
    units = Units(membership.sequences, may_be_whole=bool(membership.written))
    sequences, columns = units.numbered(), membership.columns
    length_D, num_patches_D = columns[:, 4], columns[:, 8]
    padded_D = -(-length_D // pack.document_multiple) * pack.document_multiple
    images = None if strategy.encode is None else membership.images(strategy.cost_of("encoder"))
    cost_by_module = {op.module: op.of(length_D, num_patches_D) for op in strategy.costs}
    if images is not None:
        cost_by_module["encoder"] = images.cost_D(len(columns))
    total_D = _summed(cost_by_module, len(columns))
    cost_of_units = {module: units.summed(cost_D) for module, cost_D in cost_by_module.items()}
    extent_U = units.extents(padded_D, grid.sequence_length)
    grid = replace(grid, limits=_limits(pack.limits, columns, units))
    packed = packed_layout(sequences, grid)
    layout = units.as_written(grid, membership.written)
    if layout is None:
        layout = _balanced(sequences, strategy, cost_of_units, extent_U, grid, units, columns, cuts=pack.cuts)
    order_U, *columns_U = _placed(layout, extent_U, grid)
    order, (bucket_D, slot_D, offset_D), within_D = units.documents(order_U, columns_U, padded_D)
    columns, offset_D = columns[order], offset_D + within_D
    plan = StepPlan(
        step=membership.step,
        mesh=place.mesh,
        num_buckets=grid.num_buckets,
        num_microbatches=grid.num_microbatches,
        sequences_per_microbatch=grid.sequences_per_row,
        sequence_length=grid.sequence_length,
        document_multiple=pack.document_multiple,
        consumers_B=place.consumers_B,
        broadcast=strategy.broadcast,
        slice_axis=place.slice_axis,
        slice_method=place.slice_method,
        fields_P=place.fields_P,
        source_names=membership.source_names,
        source_D=columns[:, 0].astype(np.int32),
        ordinal_D=columns[:, 1],
        part_D=columns[:, 2].astype(np.int32),
        start_D=columns[:, 3].astype(np.int32),
        length_D=columns[:, 4].astype(np.int32),
        padded_D=padded_D[order].astype(np.int32),
        num_valid_D=columns[:, 5].astype(np.int32),
        num_image_tokens_D=columns[:, 6].astype(np.int32),
        num_images_D=columns[:, 7].astype(np.int32),
        num_patches_D=columns[:, 8].astype(np.int32),
        bucket_D=bucket_D.astype(np.int32),
        slot_D=slot_D.astype(np.int32),
        offset_D=offset_D.astype(np.int32),
        cost_D=total_D[order],
        align=strategy.align,
        dummy_BM=dummies(columns[:, 7], bucket_D, slot_D, (grid.num_buckets, grid.num_microbatches))
        if "image" in strategy.align
        else np.zeros((0, 0), dtype=np.bool_),
        global_num_valid_tokens=int(columns[:, 5].sum()),
        progress=membership.progress,
        report=_report(
            membership, strategy, place, grid, columns, cost_of_units, extent_U, packed, layout, units.summed(padded_D)
        ),
        notes=membership.notes,
        is_last=membership.is_last,
        annotations={"num_repeated": membership.num_repeated} if membership.num_repeated else {},
    )
    return plan if images is None else _encoded(plan, strategy, images.in_order(order))


def _encoded(plan: StepPlan, strategy: Strategy, images: Images) -> StepPlan:
    """Return the plan with who encodes its images, and the time that the slowest rank of each round takes for it."""
    op, meeting = strategy.encode, strategy.meeting
    if op is None or meeting is None:
        return plan
    encoder, report = op.plan(plan, images, meeting)
    seconds, speed = plan.report.predicted_step_s, strategy.cost_of("encoder").flops_per_s
    if seconds is not None and speed is not None:
        seconds += report.slowest / speed
    return replace(plan, encoder=encoder, report=replace(plan.report, encoder=report, predicted_step_s=seconds))


def _balanced(
    sequences: list[list[int]],
    strategy: Strategy,
    cost_of_units: dict[str, Float64Array],
    extent_U: Int64Array,
    grid: Grid,
    units: Units,
    columns: Int64Array,
    *,
    cuts: bool,
) -> Layout:
    """Return the layout that evens out what a strategy asks for."""
    op = strategy.balance or Balance("none")
    counted = [cost_U for module, cost_U in cost_of_units.items() if not op.modules or module in op.modules]
    cost_UK, share_K = scaled(counted)
    together_U = units.any(columns[:, 7] > 0) if "image" in strategy.align else None
    how: dict[str, Any] = {"cuts": cuts, "together_D": together_U}
    if strategy.gather is None:
        return balance(sequences, cost_UK, share_K, extent_U, grid, op, **how)
    long_U = units.any(columns[:, 4] >= strategy.gather.min_tokens)
    return balance_gathered(sequences, cost_UK, share_K, extent_U, grid, op, long_U, **how)


def _limits(limits: Limits, columns: Int64Array, units: Units) -> tuple[Limit, ...]:
    loads_D = limits.loads_D(
        length_D=columns[:, 4],
        num_image_tokens_D=columns[:, 6],
        num_images_D=columns[:, 7],
        num_patches_D=columns[:, 8],
    )
    return tuple(Limit(units.summed(load_D), cap) for load_D, cap in zip(loads_D, limits.caps, strict=True))


def _check_row(step: int, grid: Grid) -> None:
    row_tokens = grid.sequences_per_row * grid.sequence_length
    if row_tokens > _MAX_ROW_TOKENS:
        raise InputError(
            f"step {step}: a microbatch has {row_tokens} tokens ({grid.sequences_per_row} sequences of "
            f"{grid.sequence_length}), which must be at most {_MAX_ROW_TOKENS}; raise num_microbatches, or lower "
            "batch.tokens_per_step"
        )


def _placed(layout: Layout, padded_D: Int64Array, grid: Grid) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return the documents by (bucket, slot, offset), with those three columns."""
    slots, buckets = range(grid.num_microbatches), range(grid.num_buckets)
    rows = [(b, m, layout.rows[m][b]) for b in buckets for m in slots]
    place_S = np.array([(b, m, q) for b, m, row in rows for q in range(len(row))], dtype=np.int64)
    documents = [layout.sequences[s] for _, _, row in rows for s in row]
    count_S = np.array([len(held) for held in documents], dtype=np.int64)
    order = np.array([d for held in documents for d in held], dtype=np.int64)
    extent = padded_D[order]
    before = np.cumsum(extent) - extent
    first_S = np.cumsum(count_S) - count_S
    in_sequence = before - np.repeat(before[np.minimum(first_S, max(0, len(order) - 1))], count_S)
    offset_D = np.repeat(place_S[:, 2] * grid.sequence_length, count_S) + in_sequence
    return order, np.repeat(place_S[:, 0], count_S), np.repeat(place_S[:, 1], count_S), offset_D


def _report(
    membership: Membership,
    strategy: Strategy,
    place: Place,
    grid: Grid,
    columns: Int64Array,
    cost_by_module: dict[str, Float64Array],
    padded_D: Int64Array,
    packed: Layout,
    layout: Layout,
    held_U: Int64Array,
) -> PlanReport:
    """Return how good a layout is; costs and extents are those of units, `held_U` is what they hold."""
    of_rows = {m: cost_D for m, cost_D in cost_by_module.items() if strategy.encode is None or m != "encoder"}
    total_D = _summed(of_rows, len(padded_D))
    row_tokens = grid.sequences_per_row * grid.sequence_length
    cost_MB, packed_MB = layout.total_MB(total_D), packed.total_MB(total_D)
    num_tokens = int(columns[:, 4].sum())
    num_names = len(membership.source_names)
    tokens_by_source = np.bincount(columns[:, 0], weights=columns[:, 4], minlength=num_names).astype(np.int64)
    samples_by_source = np.bincount(columns[:, 0], weights=columns[:, 3] == 0, minlength=num_names).astype(np.int64)
    names = membership.source_names
    floor = imbalance_floor(total_D, grid.num_buckets)
    return PlanReport(
        fill=num_tokens / (len(layout.sequences) * grid.sequence_length),
        cost_B={module: layout.total_MB(cost_D).sum(axis=0) for module, cost_D in cost_by_module.items()},
        imbalance=excess(cost_MB.sum(axis=0, keepdims=True)),
        imbalance_floor=floor,
        imbalance_floor_capped=capped_imbalance_floor(
            total_D, padded_D, grid.num_buckets, grid.num_microbatches * row_tokens
        ),
        lockstep=excess(cost_MB),
        lockstep_floor=lockstep_floor(
            total_D,
            padded_D,
            grid.num_buckets,
            grid.num_microbatches,
            grid.sequence_length,
            grid.sequences_per_row,
        ),
        packed_imbalance=excess(packed_MB.sum(axis=0, keepdims=True)),
        packed_lockstep=excess(packed_MB),
        max_row_tokens=int(layout.total_MB(held_U.astype(np.float64)).max()),
        tokens_by_source={name: int(tokens_by_source[i]) for i, name in enumerate(names) if tokens_by_source[i]},
        samples_by_source={name: int(samples_by_source[i]) for i, name in enumerate(names) if tokens_by_source[i]},
        step_flops=float(_summed(cost_by_module, len(padded_D)).sum()) if _all_flops(strategy) else None,
        predicted_step_s=_predicted_step_s(strategy, place, layout, of_rows),
    )


def _all_flops(strategy: Strategy) -> bool:
    return bool(strategy.costs) and all(op.is_flops for op in strategy.costs)


def _predicted_step_s(
    strategy: Strategy, place: Place, layout: Layout, of_rows: dict[str, Float64Array]
) -> float | None:
    """Return seconds of a step in which all ranks meet in every slot, or None without FLOP/s for every module.

    A row's work, of the modules given, is shared by the ranks that receive it: with pipeline stages, equally, in a 1F1B
    schedule whose slots take as long as their slowest row.
    """
    speeds = [op.flops_per_s for op in strategy.costs]
    if not speeds or not _all_flops(strategy) or any(speed is None for speed in speeds):
        return None
    ranks = len(place.consumers_B[0])
    seconds_MB = np.zeros((len(layout.rows), len(layout.rows[0])))
    for module, cost_D in of_rows.items():
        seconds_MB += layout.total_MB(cost_D) / ((strategy.cost_of(module).flops_per_s or 0.0) * ranks)
    slowest_M = seconds_MB.max(axis=1)
    num_stages = place.mesh.size("pp")
    return float(num_stages * pipeline_time(slowest_M, num_stages))


def _summed(cost_by_module: dict[str, Float64Array], num_documents: int) -> Float64Array:
    total_D: Float64Array = np.sum([np.zeros(num_documents), *cost_by_module.values()], axis=0)
    return total_D
