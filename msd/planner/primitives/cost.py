"""What each document of a step costs, per module, and the integers that balancing compares."""

# D = documents of the step. K = modules with a cost above zero.

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.cost import CostFunction
from msd.errors import ConfigError, MsdError, PlanError, told

MODULES = ("backbone", "encoder")
_STEP_TOTAL = float(1 << 40)
_SMALLEST, _LARGEST = 1e-200, 1e200
"""Costs above 0 lie between these, so that neither their sums nor their shares overflow."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Op of a graph: this function says what a document costs in one module."""

    function: CostFunction
    module: str = "backbone"

    def __post_init__(self) -> None:
        if self.module not in MODULES:
            raise ConfigError(f"cost has no module {self.module!r}; the modules are {', '.join(MODULES)}")
        if not callable(self.function):
            raise ConfigError(f"cost takes a function (length, patches) -> cost, got {type(self.function).__name__}")

    @property
    def is_flops(self) -> bool:
        """Whether the function says that it counts floating-point operations; a plain function does not."""
        return bool(getattr(self.function, "is_flops", False))

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s of one rank, if the function says so."""
        speed = getattr(self.function, "flops_per_s", None)
        return None if speed is None else float(speed)

    def of(self, length_D: Int64Array, num_patches_D: Int64Array) -> Float64Array:
        """Return the cost of each document.

        The function's first argument is the length that the module sees: real tokens for the backbone, image patches
        for the encoder. Its arguments are read-only: what a document costs cannot change what it is.

        Raises:
            PlanError: If the function raises, or returns another shape, or a cost that is negative or not finite.
        """
        seen_D = num_patches_D if self.module == "encoder" else length_D
        name = getattr(self.function, "__qualname__", self.function)
        called = f"cost function {name} of {self.module!r}"
        try:
            returned = self.function(_read_only(seen_D), _read_only(num_patches_D))
        except MsdError:
            raise
        except Exception as error:
            raise PlanError(f"{called} raised {told(error)}; it is called with two arrays (length, patches)") from error
        try:
            cost_D = np.asarray(returned, dtype=np.float64)
        except Exception as error:
            raise PlanError(
                f"{called} must return one number for each of {len(seen_D)} documents; it returned "
                f"{type(returned).__name__} ({told(error)})"
            ) from error
        if cost_D.shape != seen_D.shape or not _are_costs(cost_D):
            raise PlanError(
                f"{called} must return one finite number of at least 0 for each of {len(seen_D)} documents, 0 or in "
                f"[{_SMALLEST}, {_LARGEST}]; it returned shape {cost_D.shape} with minimum "
                f"{cost_D.min() if cost_D.size else None}"
            )
        return cost_D

    def __str__(self) -> str:
        return f"cost({self.function}, module={self.module!r})"


def _read_only(column_D: Int64Array) -> Int64Array:
    view = column_D.view()
    view.flags.writeable = False
    return view


def _are_costs(cost_D: Float64Array) -> bool:
    # One comparison with NaN is false, so that it is no cost.
    return bool(((cost_D == 0) | ((cost_D >= _SMALLEST) & (cost_D <= _LARGEST))).all())


def scaled(cost_by_module: Sequence[Float64Array]) -> tuple[Int64Array, Float64Array]:
    """Return integer costs [D, K] and the share that each module has of the step's cost [K].

    In each module the documents of the step sum to about 2**40. Comparing integers makes a layout the same on every
    machine; equal totals make modules comparable, so that the largest of a bucket's columns is its normalised joint
    cost. Modules that cost nothing in this step are left out.
    """
    num_documents = len(cost_by_module[0]) if cost_by_module else 0
    totals = [math.fsum(cost_D.tolist()) for cost_D in cost_by_module]
    columns = [
        np.rint(cost_D * (_STEP_TOTAL / total)).astype(np.int64)
        for cost_D, total in zip(cost_by_module, totals, strict=True)
        if total > 0
    ]
    if not columns:
        return np.zeros((num_documents, 0), dtype=np.int64), np.zeros(0)
    return np.stack(columns, axis=1), np.array([total for total in totals if total > 0]) / math.fsum(totals)
