"""What a cost function is: metadata in, one number per document out."""

# D = documents.

from typing import Protocol

from msd.core.arrays import Float64Array, Int64Array


class CostFunction(Protocol):
    """Predicts the cost of documents from metadata alone. Costs of a row's documents add up."""

    @property
    def is_flops(self) -> bool:
        """Whether costs are floating-point operations of a training step."""
        ...

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s of one rank, if the configuration says so."""
        ...

    def __call__(self, num_tokens_D: Int64Array, num_patches_D: Int64Array) -> Float64Array:
        """Return the cost of each document: finite, not negative."""
        ...
