"""Over which ranks of the mesh the sequences of a step are spread."""

from dataclasses import dataclass

from msd.errors import ConfigError
from msd.planner.place_tree import BUCKET_AXES, ClientPlaceTree


@dataclass(frozen=True, slots=True)
class Distribute:
    """Op of a graph: one bucket for every `group_size` neighbouring coordinates of an axis."""

    axis: str
    """`dp`: a bucket for each data-parallel coordinate, whose rows context-parallel ranks slice. `cp`: one for each
    (dp, cp) coordinate, with rows of their own. `world`: one for each rank."""
    group_size: int = 1

    def __post_init__(self) -> None:
        if self.axis not in BUCKET_AXES:
            raise ConfigError(f"distribute: there is no axis {self.axis!r}; the axes are {', '.join(BUCKET_AXES)}")

    @property
    def slices_rows(self) -> bool:
        """Whether context-parallel ranks receive the same rows, of which each may hold a slice."""
        return self.axis == "dp"

    def consumers(self, tree: ClientPlaceTree) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that receive each bucket."""
        return tree.buckets(self.axis, self.group_size)

    def __str__(self) -> str:
        return f"distribute({self.axis!r}, group_size={self.group_size})"
