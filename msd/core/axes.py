"""Names of mesh axes, and how the dimensions of a trainer's own mesh map to them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from msd.core.checks import whole_number
from msd.errors import ConfigError

AXES = ("pp", "dp", "cp", "tp")
"""What every mesh has; an axis that is not named has size 1."""
SPLIT_DP = ("dp_replicate", "dp_shard")
"""In place of `dp`: hybrid sharding. Their product is `dp`, the shard counting fastest."""
EXPERT = "ep"
"""An axis of its own for experts: its ranks receive the same data, as those of `tp` do.

Most trainers have none. Megatron, torchtitan and DeepSpeed fold their expert groups out of ranks that data tells apart
(`dp`, `cp`): such ranks keep their coordinates, and `ep` is not named.
"""
MESH_KEYS = (*AXES, *SPLIT_DP, EXPERT)
MEGATRON_ORDERS = {"tp-cp-ep-dp-pp": ("pp", "dp", "cp", "tp"), "tp-cp-ep-pp-dp": ("dp", "pp", "cp", "tp")}
"""Megatron's name of an order, which begins with the axis that counts fastest, to ours."""

Sizes = tuple[tuple[str, int], ...]
"""(axis, size) from the outermost axis to the innermost."""


def megatron_sizes(
    world_size: int, tp: int, pp: int, cp: int, ep: int, expert_tp: int | None, order: str
) -> dict[str, int]:
    """Return axis sizes from Megatron's arguments; see `Mesh.from_megatron`."""
    if order not in MEGATRON_ORDERS:
        raise ConfigError(f"Mesh.from_megatron knows the orders {', '.join(MEGATRON_ORDERS)}, got {order!r}")
    given = {"world": world_size, "tp": tp, "pp": pp, "cp": cp, "ep": ep}
    given["expert tp"] = tp if expert_tp is None else expert_tp
    given = {name: whole_number(size, name=f"Mesh.from_megatron: {name}") for name, size in given.items()}
    if min(given.values()) < 1:
        shown = ", ".join(f"{name}={size}" for name, size in given.items())
        raise ConfigError(f"Mesh.from_megatron: sizes must be at least 1, got {shown}")
    for names in (("tp", "cp", "pp"), ("expert tp", "ep", "pp")):
        model = math.prod(given[name] for name in names)
        if given["world"] % model:
            raise ConfigError(
                f"Mesh.from_megatron: {' * '.join(names)} = {model} does not divide the world of {given['world']} "
                f"ranks; start a multiple of {model}, or lower a size"
            )
    given["dp"] = given["world"] // (tp * cp * pp)
    return {axis: given[axis] for axis in MEGATRON_ORDERS[order]}


def device_mesh_sizes(device_mesh: Any, names: Mapping[str, str], world_size: int | None) -> Sizes:
    """Return axis sizes of a `torch.distributed.DeviceMesh`; see `Mesh.from_device_mesh`."""
    if not hasattr(device_mesh, "mesh"):
        raise ConfigError(
            f"a device mesh is a torch.distributed.DeviceMesh, got {type(device_mesh).__name__}; make it with "
            'init_device_mesh(..., mesh_dim_names=("dp", "tp"))'
        )
    dims = getattr(device_mesh, "mesh_dim_names", None)
    ranks = np.asarray(device_mesh.mesh.tolist(), dtype=np.int64)
    if not dims or len(dims) != ranks.ndim:
        raise ConfigError(
            f"the device mesh of shape {ranks.shape} has no names; make it with "
            'init_device_mesh(..., mesh_dim_names=("dp", "tp"))'
        )
    if world_size is not None and ranks.size != world_size:
        raise ConfigError(
            f"the device mesh has {ranks.size} ranks, the trainer has {world_size}; pass the mesh over all ranks"
        )
    counted = [(dims[dim], ranks.shape[dim]) for dim in _counting_order(ranks, dims)]
    axes: list[tuple[str, int]] = []
    for axis, size in [(_axis_of(dim, names), size) for dim, size in counted if size > 1]:
        if axes and axes[-1][0] == axis:
            axes[-1] = (axis, axes[-1][1] * size)
        else:
            axes.append((axis, size))
    found = [axis for axis, _ in axes]
    twice = [axis for axis in found if found.count(axis) > 1]
    if twice:
        raise ConfigError(
            f"the device mesh has dimensions of axis {twice[0]!r} with others between them "
            f"({', '.join(dim for dim, _ in counted)}); name one of them dp_replicate, the other dp_shard"
        )
    return tuple(axes)


def plain(sizes: Sizes) -> Sizes:
    """Return the axes above size 1, with `dp_replicate` and `dp_shard` as one `dp` where they lie side by side."""
    kept = tuple((axis, size) for axis, size in sizes if size > 1)
    names = [axis for axis, _ in kept]
    parts = [axis for axis in SPLIT_DP if axis in names]
    first = names.index(parts[0]) if parts else 0
    last = first + len(parts)
    if not parts or names[first:last] != parts:
        return kept
    return (*kept[:first], ("dp", math.prod(size for _, size in kept[first:last])), *kept[last:])


def _counting_order(ranks: np.ndarray[Any, np.dtype[np.int64]], dims: tuple[str, ...]) -> list[int]:
    """Return the dimensions of an array of ranks from the one that counts slowest to the one that counts fastest."""
    first = ranks[(0,) * ranks.ndim]
    steps = [int(ranks.take(1, axis=dim).flat[0] - first) if ranks.shape[dim] > 1 else 0 for dim in range(ranks.ndim)]
    order = sorted(range(ranks.ndim), key=lambda dim: (ranks.shape[dim] > 1 and -abs(steps[dim]), dim))
    counted = ranks.transpose(order).ravel()
    if np.array_equal(counted, np.arange(ranks.size)):
        return order
    shown = ", ".join(map(str, ranks.ravel()[:8].tolist())) + (", ..." if ranks.size > 8 else "")
    if sorted(ranks.ravel().tolist()) != list(range(ranks.size)):
        raise ConfigError(
            f"the device mesh ({', '.join(dims)}) is a slice: it holds ranks {shown}; pass the mesh over all ranks, as "
            "init_device_mesh returned it"
        )
    raise ConfigError(
        f"the device mesh ({', '.join(dims)}) numbers its ranks {shown}, which counts through no order of its "
        "dimensions; make it with init_device_mesh, which does"
    )


def _axis_of(dim: str, names: Mapping[str, str]) -> str:
    if dim == EXPERT and dim not in names:
        raise ConfigError(
            "the device mesh has a dimension ep; say what data its ranks receive: names={'ep': 'ep'} if the same, "
            "names={'ep': 'dp'} if experts are folded out of data-parallel ranks"
        )
    axis = names.get(dim, dim)
    if axis not in MESH_KEYS:
        raise ConfigError(
            f"the device mesh has a dimension {dim!r}, which is no axis ({', '.join(MESH_KEYS)}); say which it is: "
            f"names={{{dim!r}: 'dp'}}"
        )
    return axis
