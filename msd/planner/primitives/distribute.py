"""Over which axis of the mesh the sequences of a step are spread."""

from dataclasses import dataclass

from msd.errors import ConfigError
from msd.planner.place_tree import ClientPlaceTree

AXES = ("dp",)


@dataclass(frozen=True, slots=True)
class Distribute:
    """Op of a graph: one bucket for every `group_size` neighbouring coordinates of an axis."""

    axis: str
    group_size: int = 1

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ConfigError(f"distribute has no axis {self.axis!r}; the axes are {', '.join(AXES)}")

    def consumers(self, tree: ClientPlaceTree) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that receive each bucket."""
        return tree.buckets(self.axis, self.group_size)

    def __str__(self) -> str:
        return f"distribute({self.axis!r}, group_size={self.group_size})"
