"""The trainer mesh: axis sizes and the arithmetic between ranks and coordinates.

Data differs along `dp` (or `dp_replicate` x `dp_shard`, which together are `dp`), is cut along `cp`, and is the same
along `pp`, `tp` and `ep`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msd.core.axes import AXES, MESH_KEYS, SPLIT_DP, Sizes, device_mesh_sizes, megatron_sizes, plain
from msd.core.checks import check_range, whole_number
from msd.errors import ConfigError

__all__ = ["AXES", "MAX_RANKS", "MESH_KEYS", "Mesh"]

MAX_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axis names and sizes, outermost first; `rank = ((pp * DP + dp) * CP + cp) * TP + tp` in the default order."""

    sizes: Sizes
    """(axis, size) pairs from the outermost axis to the innermost."""

    @classmethod
    def of(cls, **sizes: int) -> "Mesh":
        """Return a mesh from axis sizes in the order given; axes that are left out have size 1 and are innermost.

        Args:
            sizes: Of `pp`, `dp`, `cp`, `tp`; of `dp_replicate` and `dp_shard` in place of `dp`; of `ep`.

        Raises:
            ConfigError: If there is no such axis, a size is below 1, or both `dp` and a part of it are named.
        """
        unknown = [axis for axis in sizes if axis not in MESH_KEYS]
        if unknown:
            raise ConfigError(f"mesh has no axis {unknown[0]!r}; the axes are {', '.join(MESH_KEYS)}")
        sizes = {axis: whole_number(size, name=f"mesh.{axis}") for axis, size in sizes.items()}
        bad = [f"{axis}={size}" for axis, size in sizes.items() if size < 1]
        if bad:
            raise ConfigError(f"mesh sizes must be at least 1, got {', '.join(bad)}")
        parts = [axis for axis in SPLIT_DP if axis in sizes]
        if parts and "dp" in sizes:
            raise ConfigError(
                f"mesh names dp and {parts[0]}; dp is dp_replicate * dp_shard: leave dp out, or {' and '.join(parts)}"
            )
        left_out = [axis for axis in AXES if axis not in sizes and not (axis == "dp" and parts)]
        mesh = cls((*sizes.items(), *((axis, 1) for axis in left_out)))
        check_range("the number of ranks of the mesh", mesh.world_size, 1, MAX_RANKS)
        return mesh

    @classmethod
    def from_megatron(
        cls,
        world_size: int,
        *,
        tensor_model_parallel_size: int = 1,
        pipeline_model_parallel_size: int = 1,
        context_parallel_size: int = 1,
        expert_model_parallel_size: int = 1,
        expert_tensor_parallel_size: int | None = None,
        order: str = "tp-cp-ep-dp-pp",
    ) -> "Mesh":
        """Return the mesh of `megatron.core.parallel_state.initialize_model_parallel` with the same arguments.

        Data parallelism is what the sizes leave of the world. Experts are folded out of `dp`, `cp` and `tp` there, so
        their sizes are checked as Megatron does and change nothing else.

        Args:
            world_size: Number of ranks.
            tensor_model_parallel_size: Size of `tp`.
            pipeline_model_parallel_size: Size of `pp`; virtual stages are a matter of `pipeline` in the configuration.
            context_parallel_size: Size of `cp`.
            expert_model_parallel_size: Ranks over which the experts of a layer are spread.
            expert_tensor_parallel_size: Ranks that share one expert; None is `tensor_model_parallel_size`.
            order: Megatron's, from the innermost axis outwards: `tp-cp-ep-dp-pp`, or `tp-cp-ep-pp-dp`
                (`--use-tp-pp-dp-mapping`).

        Raises:
            ConfigError: If the world does not divide by the sizes, naming both numbers, or the order is another one.
        """
        return cls.of(
            **megatron_sizes(
                world_size,
                tensor_model_parallel_size,
                pipeline_model_parallel_size,
                context_parallel_size,
                expert_model_parallel_size,
                expert_tensor_parallel_size,
                order,
            )
        )

    @classmethod
    def from_device_mesh(
        cls, device_mesh: Any, *, names: Mapping[str, str] | None = None, world_size: int | None = None
    ) -> "Mesh":
        """Return the mesh of a `torch.distributed.DeviceMesh`, its axes in the order in which ranks count.

        Args:
            device_mesh: Over all ranks, with `mesh_dim_names`. Its dimensions may stand in any order, as long as rank
                numbers count through them axis by axis.
            names: Of dimensions to axes, where they differ: `{"fsdp": "dp_shard"}`. Neighbouring dimensions of one axis
                are one: `{"efsdp": "dp", "ep": "dp"}`. A dimension `ep` must be named here: as `ep` if its ranks
                receive the same data, as the axis that it was folded out of if they do not.
            world_size: Ranks of the trainer; None is those of the mesh.

        Raises:
            ConfigError: If a dimension has no name or is no axis, or the mesh is a slice, does not number its ranks
                axis by axis, or does not match the world.
        """
        return cls.of(**dict(device_mesh_sizes(device_mesh, names or {}, world_size)))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(size for _, size in self.sizes)

    def size(self, axis: str) -> int:
        """Return the number of ranks along `axis`; `dp` is `dp_replicate * dp_shard` where these are given."""
        for name, size in self.sizes:
            if name == axis:
                return size
        if axis == "dp":
            return math.prod(size for name, size in self.sizes if name in SPLIT_DP)
        raise ConfigError(f"mesh has no axis {axis!r}; the axes are {', '.join(name for name, _ in self.sizes)}")

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the index of `rank` on each axis, and on `dp` where the mesh has it in two parts."""
        self.check_rank(rank)
        coordinate: dict[str, int] = {}
        for axis, size in reversed(self.sizes):
            rank, coordinate[axis] = divmod(rank, size)
        found = {axis: coordinate[axis] for axis, _ in self.sizes}
        if "dp" not in found:
            found["dp"] = _joined(found, self.sizes)
        return found

    def rank(self, **coordinate: int) -> int:
        """Return the rank at a coordinate; axes that are left out are at 0.

        Raises:
            ConfigError: If there is no such axis or index, or `dp` and its two parts contradict each other.
        """
        held = dict(self.sizes)
        if "dp" in coordinate and "dp" not in held:
            coordinate = self._with_dp_in_parts(coordinate)
        rank = 0
        for axis, size in self.sizes:
            index = coordinate.pop(axis, 0)
            if not 0 <= index < size:
                raise ConfigError(f"coordinate {axis}={index} is outside the mesh ({self}); it must be below {size}")
            rank = rank * size + index
        if coordinate:
            raise ConfigError(f"mesh has no axis {next(iter(coordinate))!r}; the axes are {', '.join(held)}")
        return rank

    def check_rank(self, rank: int) -> None:
        """Raise `ConfigError` unless `rank` lies in the mesh."""
        rank = whole_number(rank, name="rank")
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                f"rank {rank} is outside the mesh of {self.world_size} ranks ({self}); ranks count from 0"
            )

    def check_world_size(self, world_size: int) -> None:
        """Raise `ConfigError` unless the mesh has as many ranks as the trainer."""
        if world_size != self.world_size:
            raise ConfigError(
                f"the mesh of the run ({self}) has {self.world_size} ranks, the trainer has {world_size}; set mesh so "
                f"that its sizes multiply to {world_size}, or start {self.world_size} ranks"
            )

    def is_like(self, other: "Mesh") -> bool:
        """Return whether every rank has the same coordinates in both: axes of size 1 and the parts of `dp` aside."""
        return plain(self.sizes) == plain(other.sizes)

    def as_dict(self) -> dict[str, int]:
        """Return axis sizes, outermost first."""
        return dict(self.sizes)

    def __str__(self) -> str:
        return " ".join(f"{axis}={size}" for axis, size in self.sizes)

    def _with_dp_in_parts(self, coordinate: dict[str, int]) -> dict[str, int]:
        rest = {axis: index for axis, index in coordinate.items() if axis != "dp"}
        held, left = dict(self.sizes), coordinate["dp"]
        parts: dict[str, int] = {}
        for axis in reversed([axis for axis in SPLIT_DP if axis in held]):
            left, parts[axis] = divmod(left, held[axis])
        if left or any(rest.get(axis, index) != index for axis, index in parts.items()):
            raise ConfigError(
                f"coordinate dp={coordinate['dp']} is outside the mesh ({self}), or contradicts its parts; dp counts "
                f"dp_replicate and dp_shard together and must be below {self.size('dp')}"
            )
        return rest | parts


def _joined(coordinate: Mapping[str, int], sizes: Sizes) -> int:
    """Return the index on `dp` from those on its parts."""
    held, dp = dict(sizes), 0
    for axis in SPLIT_DP:
        dp = dp * held.get(axis, 1) + coordinate.get(axis, 0)
    return dp
