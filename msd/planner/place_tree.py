"""The mesh seen as who must be fed: buckets along an axis, who receives each, who fetches for the others."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from msd.core.mesh import AXES, Mesh
from msd.errors import ConfigError


@dataclass(frozen=True)
class ClientPlaceTree:
    """Ranks of a mesh, by the axis along which data differs."""

    mesh: Mesh

    def buckets(self, axis: str, group_size: int = 1) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that receive each bucket, in increasing order.

        Args:
            axis: Data differs along this axis and is the same along all others.
            group_size: Neighbouring coordinates that share a bucket.

        Raises:
            ConfigError: If the mesh has no such axis, or its size does not divide by `group_size`.
        """
        size = self.mesh.size(axis)
        if group_size < 1 or size % group_size:
            raise ConfigError(f"distribute({axis!r}): {axis}={size} does not divide into groups of {group_size}")
        found: list[list[int]] = [[] for _ in range(size // group_size)]
        for rank, coordinate in enumerate(self._coordinates):
            found[coordinate[self._axis_place[axis]] // group_size].append(rank)
        return tuple(tuple(ranks) for ranks in found)

    def ranks(self, **coordinate: int) -> tuple[int, ...]:
        """Return the ranks at a partial coordinate: `ranks(dp=1, tp=0)`."""
        for axis, index in coordinate.items():
            if not 0 <= index < self.mesh.size(axis):
                raise ConfigError(f"{axis}={index} is outside the mesh ({self.mesh})")
        wanted = {self._axis_place[axis]: index for axis, index in coordinate.items()}
        return tuple(
            rank
            for rank, found in enumerate(self._coordinates)
            if all(found[place] == index for place, index in wanted.items())
        )

    def root_of(self, rank: int, broadcast: Iterable[str]) -> int:
        """Return the rank that fetches for `rank` when the `broadcast` axes share what their coordinate 0 fetches."""
        return self.mesh.rank(**{**self.mesh.coordinate(rank), **dict.fromkeys(broadcast, 0)})

    def check_broadcast(self, axis: str, bucket_axis: str) -> None:
        """Raise `ConfigError` unless ranks along `axis` receive the same bucket."""
        if axis not in AXES:
            raise ConfigError(f"broadcast_at: there is no axis {axis!r}; the axes are {', '.join(AXES)}")
        if axis == bucket_axis:
            raise ConfigError(f"broadcast_at({axis!r}): ranks along {axis} receive different data; use another axis")

    def __str__(self) -> str:
        return f"{self.mesh} ({self.mesh.world_size} ranks)"

    @cached_property
    def _axis_place(self) -> dict[str, int]:
        return {axis: place for place, (axis, _) in enumerate(self.mesh.sizes)}

    @cached_property
    def _coordinates(self) -> tuple[tuple[int, ...], ...]:
        return tuple(product(*(range(size) for _, size in self.mesh.sizes)))
