"""The trainer mesh: axis sizes and the arithmetic between ranks and coordinates."""

from dataclasses import dataclass

from msd.core.checks import check_range, whole_number
from msd.errors import ConfigError

AXES = ("pp", "dp", "cp", "tp")
MAX_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axis names and sizes, outermost first; `rank = ((pp * DP + dp) * CP + cp) * TP + tp` in the default order."""

    sizes: tuple[tuple[str, int], ...]
    """(axis, size) pairs from the outermost axis to the innermost."""

    @classmethod
    def of(cls, **sizes: int) -> "Mesh":
        """Return a mesh from axis sizes in the order given; axes that are left out have size 1 and are innermost."""
        unknown = [axis for axis in sizes if axis not in AXES]
        if unknown:
            raise ConfigError(f"mesh has no axis {unknown[0]!r}; the axes are {', '.join(AXES)}")
        sizes = {axis: whole_number(size, name=f"mesh.{axis}") for axis, size in sizes.items()}
        bad = [f"{axis}={size}" for axis, size in sizes.items() if size < 1]
        if bad:
            raise ConfigError(f"mesh sizes must be at least 1, got {', '.join(bad)}")
        mesh = cls(tuple(sizes.items()) + tuple((axis, 1) for axis in AXES if axis not in sizes))
        check_range("the number of ranks of the mesh", mesh.world_size, 1, MAX_RANKS)
        return mesh

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        product = 1
        for _, size in self.sizes:
            product *= size
        return product

    def size(self, axis: str) -> int:
        """Return the number of ranks along `axis`."""
        for name, size in self.sizes:
            if name == axis:
                return size
        raise ConfigError(f"mesh has no axis {axis!r}; the axes are {', '.join(name for name, _ in self.sizes)}")

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the index of `rank` on each axis."""
        self.check_rank(rank)
        coordinate: dict[str, int] = {}
        for axis, size in reversed(self.sizes):
            rank, coordinate[axis] = divmod(rank, size)
        return {axis: coordinate[axis] for axis, _ in self.sizes}

    def rank(self, **coordinate: int) -> int:
        """Return the rank at a coordinate; axes that are left out are at 0."""
        rank = 0
        for axis, size in self.sizes:
            index = coordinate.pop(axis, 0)
            if not 0 <= index < size:
                raise ConfigError(f"coordinate {axis}={index} is outside the mesh ({self}); it must be below {size}")
            rank = rank * size + index
        if coordinate:
            raise ConfigError(f"mesh has no axis {next(iter(coordinate))!r}; the axes are {', '.join(self.as_dict())}")
        return rank

    def check_rank(self, rank: int) -> None:
        """Raise `ConfigError` unless `rank` lies in the mesh."""
        rank = whole_number(rank, name="rank")
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                f"rank {rank} is outside the mesh of {self.world_size} ranks ({self}); ranks count from 0"
            )

    def as_dict(self) -> dict[str, int]:
        """Return axis sizes, outermost first."""
        return dict(self.sizes)

    def __str__(self) -> str:
        return " ".join(f"{axis}={size}" for axis, size in self.sizes)
