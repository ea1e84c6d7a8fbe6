"""Below which axis ranks share what one of them fetches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BroadcastAt:
    """Op of a graph: along this axis only the rank at coordinate 0 fetches; the others receive markers with shapes."""

    axis: str

    def __str__(self) -> str:
        return f"broadcast_at({self.axis!r})"
