"""The mesh seen as who must be fed.

Buckets along an axis, who receives each, who fetches for the others, and which pipeline stages need what. A value:
another mesh is another tree.
"""

# R = ranks of the mesh.

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.axes import SPLIT_DP
from msd.core.mesh import Mesh
from msd.core.stages import FIELDS, Stages
from msd.errors import ConfigError
from msd.planner.words import numbers

_DIFFERS: dict[str, tuple[str, ...]] = {"dp": ("dp", *SPLIT_DP), "cp": ("dp", *SPLIT_DP, "cp")}
"""Along which axes of the mesh data differs, by what buckets are made along; along `world` it differs everywhere."""
BUCKET_AXES = (*_DIFFERS, "world")


@dataclass(frozen=True)
class ClientPlaceTree:
    """Ranks of a mesh, by what each of them must receive."""

    mesh: Mesh
    stages: Stages = field(default_factory=Stages)
    """How pipeline stages lie on the ranks of `pp`."""

    def buckets(self, axis: str, group_size: int = 1) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that receive each bucket, in increasing order.

        Args:
            axis: `dp` makes a bucket for each data-parallel coordinate; `cp` one for each (dp, cp) coordinate, so that
                context-parallel ranks work on data of their own and rows are not sliced; `world` one for each rank.
            group_size: Neighbouring buckets of that kind that are one.

        Raises:
            ConfigError: If there is no such axis, or the number of buckets does not divide by `group_size`.
        """
        if axis not in BUCKET_AXES:
            raise ConfigError(f"distribute: there is no axis {axis!r}; the axes are {', '.join(BUCKET_AXES)}")
        bucket_R = np.arange(self.mesh.world_size)
        if axis != "world":
            bucket_R = self._index["dp"]
        if axis == "cp":
            bucket_R = bucket_R * self.mesh.size("cp") + self._index["cp"]
        count = int(bucket_R.max()) + 1
        if group_size < 1 or count % group_size:
            raise ConfigError(
                f"distribute({axis!r}): the {count} buckets along {axis} do not divide into groups of {group_size}"
            )
        order = np.argsort(bucket_R // group_size, kind="stable")
        return tuple(tuple(ranks) for ranks in order.reshape(count // group_size, -1).tolist())

    def ranks(self, **coordinate: int) -> tuple[int, ...]:
        """Return the ranks at a partial coordinate: `ranks(dp=1, tp=0)`."""
        chosen_R = np.ones(self.mesh.world_size, dtype=np.bool_)
        for axis, index in coordinate.items():
            if not 0 <= index < self.mesh.size(axis):
                raise ConfigError(f"{axis}={index} is outside the mesh ({self.mesh})")
            chosen_R &= self._index[axis] == index
        return tuple(np.flatnonzero(chosen_R).tolist())

    def root_of(self, rank: int, broadcast: Iterable[str]) -> int:
        """Return the rank that fetches for `rank` when the `broadcast` axes share what their coordinate 0 fetches."""
        return self.mesh.rank(**{**self.mesh.coordinate(rank), **dict.fromkeys(broadcast, 0)})

    def fetchers(self, broadcast: Iterable[str]) -> tuple[int, ...]:
        """Return the ranks that fetch: those at coordinate 0 of every `broadcast` axis."""
        return self.ranks(**dict.fromkeys(broadcast, 0))

    def peers_of(self, rank: int, axis: str = "dp") -> tuple[int, ...]:
        """Return the ranks that receive the same bucket as `rank`, itself among them."""
        self.mesh.check_rank(rank)
        return next(ranks for ranks in self.buckets(axis) if rank in ranks)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the pipeline stages that `rank` holds: several where they are virtual."""
        return self.stages.of(self.mesh.coordinate(rank)["pp"], self.mesh.size("pp"))

    def fields_of(self, rank: int) -> tuple[str, ...]:
        """Return the fields of a microbatch that the stages of `rank` need, besides boundaries and shapes."""
        return self.fields_by_stage[self.mesh.coordinate(rank)["pp"]]

    @property
    def fields_by_stage(self) -> tuple[tuple[str, ...], ...]:
        """By coordinate on `pp`: the fields that its ranks need."""
        num_ranks = self.mesh.size("pp")
        return tuple(self.stages.fields_of(index, num_ranks) for index in range(num_ranks))

    def check_broadcast(self, axis: str, bucket_axis: str) -> None:
        """Raise `ConfigError` unless ranks along `axis` receive the same bucket."""
        axes = self.mesh.as_dict()
        if axis not in axes and axis != "dp":
            raise ConfigError(f"broadcast_at: there is no axis {axis!r}; the axes are {', '.join(axes)}")
        if axis in _DIFFERS.get(bucket_axis, (*axes, "dp")):
            raise ConfigError(f"broadcast_at({axis!r}): ranks along {axis} receive different data; use another axis")

    def drawn(self, axis: str = "dp", *, max_buckets: int = 4) -> str:
        """Return the tree as text: buckets, their slices, the stages of each with the ranks that hold them."""
        buckets = self.buckets(axis)
        lines = [str(self)]
        for bucket, ranks in enumerate(buckets[:max_buckets]):
            is_last = bucket == len(buckets) - 1
            lines.append(f"{'└─' if is_last else '├─'} bucket {bucket}")
            lines.extend(f"{'   ' if is_last else '│  '}{line}" for line in self._branch(ranks))
        if len(buckets) > max_buckets:
            lines.append(f"└─ and {len(buckets) - max_buckets} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.mesh} ({self.mesh.world_size} ranks)"

    def _branch(self, ranks: tuple[int, ...]) -> Iterator[str]:
        """Yield a line for each stage of each slice of a bucket."""
        held_R = np.array(ranks)
        places = sorted({(int(self._index["cp"][rank]), int(self._index["pp"][rank])) for rank in ranks})
        for number, (cp, pp) in enumerate(places):
            here = held_R[(self._index["cp"][held_R] == cp) & (self._index["pp"][held_R] == pp)]
            slice_ = f"cp {cp}  " if self.mesh.size("cp") > 1 else ""
            held = ", ".join(map(str, self.stages.of(pp, self.mesh.size("pp"))))
            needed = self.fields_by_stage[pp]
            shown = "all fields" if set(needed) == set(FIELDS) else ", ".join(needed) or "boundaries and shapes"
            branch = "└─" if number == len(places) - 1 else "├─"
            yield f"{branch} {slice_}pp {pp}  stage {held} needs {shown}: {numbers(here.tolist(), 'rank')}"

    @cached_property
    def _index(self) -> dict[str, Int64Array]:
        """By axis: the index of every rank [R]."""
        shape = tuple(size for _, size in self.mesh.sizes)
        at = np.unravel_index(np.arange(self.mesh.world_size), shape)
        index = {axis: at[place].astype(np.int64) for place, (axis, _) in enumerate(self.mesh.sizes)}
        if "dp" not in index:
            index["dp"] = np.zeros(self.mesh.world_size, dtype=np.int64)
            for axis in SPLIT_DP:
                if axis in index:
                    index["dp"] = index["dp"] * self.mesh.size(axis) + index[axis]
        return index
