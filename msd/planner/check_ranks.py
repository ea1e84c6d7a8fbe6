"""What must hold of who receives what: slices, fields by stage, and who fetches for whom."""

# R = ranks of the mesh.

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.plan import StepPlan
from msd.core.slices import SLICE_METHODS
from msd.core.stages import FIELDS


def check_ranks(plan: StepPlan) -> list[str]:
    """Return the rules that a plan breaks in what it says of ranks, one line each."""
    axes = set(plan.mesh.as_dict()) | {"dp"}
    unknown = [axis for axis in (*plan.broadcast, plan.slice_axis) if axis is not None and axis not in axes]
    if unknown:
        return [f"axis {unknown[0]!r} is no axis of the mesh ({plan.mesh})"]
    return [*_check_slices(plan), *_check_fields(plan), *_check_roots(plan)]


def _check_slices(plan: StepPlan) -> list[str]:
    if plan.slice_method not in SLICE_METHODS:
        return [f"there is no slice method {plan.slice_method!r}"]
    if plan.slice_axis is None:
        return []
    chunks = 2 * plan.mesh.size(plan.slice_axis)
    is_cut = {"zigzag": ("documents", plan.document_multiple), "headtail": ("sequences", plan.sequence_length)}
    what, length = is_cut[plan.slice_method]
    if length % chunks or plan.sequence_length % chunks:
        return [f"{what} of multiples of {length} tokens do not divide into {chunks} chunks along {plan.slice_axis}"]
    return []


def _check_fields(plan: StepPlan) -> list[str]:
    if plan.fields_P is None:
        return []
    num_stages = plan.mesh.size("pp")
    if len(plan.fields_P) != num_stages:
        return [f"fields are said for {len(plan.fields_P)} coordinates of pp={num_stages}"]
    given = {name for fields in plan.fields_P for name in fields}
    broken = [f"there is no field {name!r} to give to a pipeline stage" for name in sorted(given - set(FIELDS))]
    broken += [f"no pipeline stage receives {name}" for name in FIELDS if name not in given]
    pp_R, bucket_R = _coordinates(plan)["pp"], _buckets(plan)
    meets_BP = np.zeros((plan.num_buckets, num_stages), dtype=np.bool_)
    meets_BP[bucket_R, pp_R] = True
    apart_B = np.flatnonzero(~meets_BP.all(axis=1))
    if len(apart_B):
        broken.append(f"{len(apart_B)} buckets, the first is {apart_B[0]}, are not received by every coordinate of pp")
    return broken


def _check_roots(plan: StepPlan) -> list[str]:
    """Whoever fetches for another rank receives the same bucket, and all the fields that the other one needs."""
    if not plan.broadcast:
        return []
    root_R, bucket_R = _roots(plan), _buckets(plan)
    broken = []
    other_R = np.flatnonzero(bucket_R != bucket_R[root_R])
    if len(other_R):
        rank = int(other_R[0])
        broken.append(
            f"{len(other_R)} ranks: rank {rank} of bucket {bucket_R[rank]} is fed by rank {root_R[rank]} of bucket "
            f"{bucket_R[root_R[rank]]}"
        )
    if plan.fields_P is not None and "pp" in plan.broadcast and set(plan.fields_P[0]) != set(FIELDS):
        broken.append("rank 0 of pp fetches for other stages, and does not receive their fields")
    return broken


def _roots(plan: StepPlan) -> Int64Array:
    """Return who fetches for each rank: the rank with coordinate 0 on every broadcast axis."""
    index = {axis: at_R * (axis not in plan.broadcast) for axis, at_R in _coordinates(plan).items()}
    return np.ravel_multi_index(tuple(index.values()), tuple(plan.mesh.as_dict().values())).astype(np.int64)


def _coordinates(plan: StepPlan) -> dict[str, Int64Array]:
    """Return the index of every rank on each axis, outermost first."""
    sizes = plan.mesh.as_dict()
    at = np.unravel_index(np.arange(plan.mesh.world_size), tuple(sizes.values()))
    return {axis: at_R.astype(np.int64) for axis, at_R in zip(sizes, at, strict=True)}


def _buckets(plan: StepPlan) -> Int64Array:
    """Return the bucket that each rank receives."""
    bucket_R = np.empty(plan.mesh.world_size, dtype=np.int64)
    for bucket, ranks in enumerate(plan.consumers_B):
        bucket_R[list(ranks)] = bucket
    return bucket_R
