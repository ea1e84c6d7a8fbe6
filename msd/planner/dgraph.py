"""How a step is decided, declared as a graph: immutable, each call returns a longer one, `plan()` ends it.

    DGraph.over(tree).mix(schedule).pack("best_fit", ...).distribute("dp").cost(f).balance("lpt").plan()

Ops before `distribute` decide what a step holds and know no mesh; those after it decide where things go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msd.core.cost import CostFunction
from msd.core.plan import StepPlan
from msd.errors import ConfigError
from msd.planner.batch_schedule import BatchSchedule
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.place_tree import ClientPlaceTree
from msd.planner.primitives.align import Align
from msd.planner.primitives.balance import Balance, Method, Objective
from msd.planner.primitives.broadcast import BroadcastAt
from msd.planner.primitives.cost import Cost
from msd.planner.primitives.distribute import Distribute
from msd.planner.primitives.encode import Encode, Every, Meeting, Ranks
from msd.planner.primitives.gather import Gather
from msd.planner.primitives.mix import Mix
from msd.planner.primitives.pack import NO_LIMITS, Limits, Pack

if TYPE_CHECKING:
    import pandas

Op = Mix | Pack | Distribute | Cost | Balance | Gather | Align | Encode | BroadcastAt
_Kind = TypeVar("_Kind", Mix, Pack, Distribute, Cost, Balance, Gather, Align, Encode, BroadcastAt)
_NAMES: dict[type[Any], str] = {
    Mix: "mix", Pack: "pack", Distribute: "distribute", Cost: "cost", Balance: "balance", Align: "align",
    Encode: "encode", Gather: "gather",
    BroadcastAt: "broadcast_at",
}  # fmt: skip
_NO_DUMMIES = "rows need no dummy images where others encode them: leave balance.align, or .align(...), out"

_MEMBERSHIP = (Mix, Pack)
"""Ops that decide what a step holds, and know no mesh."""


@dataclass(frozen=True)
class Strategy:
    """A finished graph, by role."""

    tree: ClientPlaceTree
    mix: Mix
    pack: Pack
    distribute: Distribute
    costs: tuple[Cost, ...]
    balance: Balance | None
    """None keeps the packed layout."""
    broadcast: tuple[str, ...]
    align: tuple[str, ...]
    """Modalities that all rows of a slot have, or none."""
    graph: "DGraph"
    """What was declared."""
    gather: Gather | None = None
    """None has long documents wherever balance puts them."""
    encode: Encode | None = None
    """None has every row's ranks encode the row's images."""

    def cost_of(self, module: str) -> Cost:
        """Return the cost of a module that has one."""
        return next(op for op in self.costs if op.module == module)

    @cached_property
    def consumers_B(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that receive each bucket."""
        return self.distribute.consumers(self.tree)

    @cached_property
    def meeting(self) -> Meeting | None:
        """Who takes part where images are encoded apart from their rows."""
        return None if self.encode is None else self.encode.meeting(self.tree, self.consumers_B)


@dataclass(frozen=True, slots=True)
class DGraph:
    """A declaration of how steps are decided."""

    tree: ClientPlaceTree
    ops: tuple[Op, ...] = ()

    @classmethod
    def over(cls, tree: ClientPlaceTree) -> "DGraph":
        """Return the empty graph over the ranks to feed."""
        return cls(tree)

    def mix(self, schedule: MixtureSchedule) -> "DGraph":
        """Draw samples from sources by this schedule."""
        return self._with(Mix(schedule))

    def pack(
        self,
        method: Literal["best_fit", "first_fit_decreasing", "concat", "none"] = "best_fit",
        *,
        num_sequences: int,
        sequence_length: int,
        document_multiple: int = 1,
        lookahead: int = 32,
        objective: Literal["fill", "cost"] = "fill",
        max_age: int = 2,
        limits: Limits = NO_LIMITS,
        oversize: Literal["error", "drop"] = "error",
        schedule: BatchSchedule | None = None,
        apart: int | None = None,
    ) -> "DGraph":
        """Fill the sequences of a step with what is drawn; `schedule` changes their number and length over steps."""
        self._need("pack", Mix, "call .mix(schedule) first")
        self._refuse("pack", Distribute, "what a step holds must not depend on the mesh: call .pack(...) before it")
        return self._with(
            Pack(
                method, num_sequences, sequence_length, document_multiple, lookahead,
                objective=objective, max_age=max_age, limits=limits, oversize=oversize, schedule=schedule,
                apart=apart,
            )
        )  # fmt: skip

    def distribute(self, axis: str = "dp", group_size: int = 1) -> "DGraph":
        """Make one bucket for every `group_size` neighbouring coordinates of an axis."""
        self._need("distribute", Pack, "call .pack(...) first")
        op = Distribute(axis, group_size)
        op.consumers(self.tree)
        return self._with(op)

    def cost(self, function: CostFunction, module: str = "backbone") -> "DGraph":
        """Say what a document costs in a module; one call for each module."""
        if module in [op.module for op in self._all(Cost)]:
            raise ConfigError(f"cost: module {module!r} has a cost already; leave one of the two out")
        return self._with(Cost(function, module))

    def balance(
        self,
        method: Method = "lpt",
        across: Sequence[Literal["bucket", "microbatch"]] = ("bucket", "microbatch"),
        *,
        min_gain: float = 0.0,
        objective: Objective = "auto",
        modules: Sequence[str] = (),
    ) -> "DGraph":
        """Even out cost over buckets, over microbatches, or both: of the modules named, or of all."""
        self._need("balance", Distribute, "call .distribute(axis) first")
        self._need("balance", Cost, "call .cost(function) first")
        for module in modules:
            self._need_cost("balance", module)
        return self._with(Balance(method, tuple(across), min_gain, objective, tuple(modules)))

    def gather(self, min_tokens: int) -> "DGraph":
        """Let documents of at least so many tokens lie in as few slots as the sequences that hold them fill."""
        self._need("gather", Distribute, "call .distribute(axis) first")
        return self._with(Gather(min_tokens))

    def encode(self, ranks: Ranks = "world", every: Every | None = None) -> "DGraph":
        """Give each image, whole, to one rank by encoder cost; the ranks of its row receive its embeddings.

        Args:
            ranks: Who encodes: `dp` one rank of each data-parallel coordinate, `dp_cp` also each context-parallel one,
                `world` all.
            every: How often the ranks meet: once in every `slot`, or once a `step`. None is `slot`, unless later
                pipeline stages encode.
        """
        self._need("encode", Distribute, "call .distribute(axis) first")
        self._need_cost("encode", "encoder")
        self._refuse("encode", Align, _NO_DUMMIES)
        if every is None:
            every = "step" if ranks == "world" and self.tree.mesh.size("pp") > 1 else "slot"
        op = Encode(ranks, every)
        op.check(self.tree)
        return self._with(op)

    def align(self, modality: str) -> "DGraph":
        """Let all rows of a slot have this modality or none: a row that lacks it carries a flagged dummy."""
        self._need("align", Distribute, "call .distribute(axis) first")
        self._refuse("align", Encode, _NO_DUMMIES)
        if modality in [op.modality for op in self._all(Align)]:
            raise ConfigError(f"align({modality!r}) stands twice; leave one out")
        return self._with(Align(modality))

    def broadcast_at(self, axis: str) -> "DGraph":
        """Let only the rank at coordinate 0 of this axis fetch."""
        self._need("broadcast_at", Distribute, "call .distribute(axis) first")
        self.tree.check_broadcast(axis, self._all(Distribute)[0].axis)
        if axis in [op.axis for op in self._all(BroadcastAt)]:
            raise ConfigError(f"broadcast_at({axis!r}) stands twice; leave one out")
        return self._with(BroadcastAt(axis))

    def plan(self) -> Strategy:
        """Check the graph and return what planning follows.

        Raises:
            ConfigError: If an op that every plan needs is missing.
        """
        for kind in (Mix, Pack, Distribute):
            self._need("plan", kind, f"call .{_NAMES[kind]}(...) first")
        balance, gather, encode = self._all(Balance), self._all(Gather), self._all(Encode)
        return Strategy(
            tree=self.tree,
            mix=self._all(Mix)[0],
            pack=self._all(Pack)[0],
            distribute=self._all(Distribute)[0],
            costs=tuple(self._all(Cost)),
            balance=balance[0] if balance else None,
            broadcast=tuple(op.axis for op in self._all(BroadcastAt)),
            align=tuple(op.modality for op in self._all(Align)),
            graph=self,
            gather=gather[0] if gather else None,
            encode=encode[0] if encode else None,
        )

    def to_pandas(self, plans: StepPlan | Iterable[StepPlan] | None = None) -> "pandas.DataFrame":
        """Return the ops as a table; with plans that follow the graph, their documents from source to slice.

        Args:
            plans: A step, or steps; see `msd.planner.frames` for the columns.
        """
        import pandas

        from msd.planner.frames import plan_to_pandas

        if plans is not None:
            return plan_to_pandas(plans)
        return pandas.DataFrame(
            [(*_named(op), "what a step holds" if isinstance(op, _MEMBERSHIP) else "where it goes") for op in self.ops],
            columns=["op", "arguments", "decides"],
        )

    def _repr_svg_(self) -> str:
        from msd.planner.draw import graph_svg

        return graph_svg([(*_named(op), isinstance(op, _MEMBERSHIP)) for op in self.ops])

    def __str__(self) -> str:
        return "\n  .".join([f"DGraph.over({self.tree})", *(str(op) for op in self.ops)])

    def _all(self, kind: type[_Kind]) -> list[_Kind]:
        return [op for op in self.ops if isinstance(op, kind)]

    def _with(self, op: Op) -> "DGraph":
        if not isinstance(op, Cost | Align | BroadcastAt) and any(type(known) is type(op) for known in self.ops):
            raise ConfigError(f"{_NAMES[type(op)]} stands twice in the graph; leave one out")
        return DGraph(self.tree, (*self.ops, op))

    def _need(self, name: str, kind: type[Any], fix: str) -> None:
        if not self._all(kind):
            raise ConfigError(f"{name} needs {_NAMES[kind]} before it; {fix}")

    def _need_cost(self, name: str, module: str) -> None:
        if module not in [op.module for op in self._all(Cost)]:
            raise ConfigError(f"{name} needs a cost of {module!r}; call .cost(function, {module!r}) first")

    def _refuse(self, name: str, kind: type[Any], fix: str) -> None:
        if self._all(kind):
            raise ConfigError(f"{name} cannot follow {_NAMES[kind]}; {fix}")


def _named(op: Op) -> tuple[str, str]:
    """Return the name of an op and its arguments, as they are printed."""
    name, _, arguments = str(op).partition("(")
    return name, arguments.removesuffix(")")
