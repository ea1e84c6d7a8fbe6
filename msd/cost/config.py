"""Which function predicts the cost of a document. Apart from the functions, so that reading it imports nothing."""

from typing import Any

from msd.core.checks import check_range
from msd.core.config import ConfigStruct
from msd.errors import ConfigError


class CostStruct(ConfigStruct, frozen=True, kw_only=True, tag_field="kind"):
    """Common base of the cost functions."""


class TransformerCost(CostStruct, frozen=True, kw_only=True, tag="transformer"):
    """FLOPs of a dense, grouped-query, gated or mixture-of-experts transformer; see `msd.cost.analytic`."""

    hidden: int
    layers: int
    heads: int | None = None
    kv_heads: int | None = None
    """Grouped-query attention: heads of keys and values; needs `heads`."""
    ffn: int | None = None
    """Inner width of the MLP; null is 4 * hidden."""
    gated: bool = False
    """A gated MLP has three matrices instead of two."""
    experts_per_token: int = 1
    vocab: int = 0
    """Size of the output projection; 0 leaves it out."""
    causal: bool = True
    """A causal mask halves the attention term."""
    training: bool = True
    """Times 3: forward and backward."""
    flops_per_s: float | None = None
    """Achieved FLOP/s of one rank; turns cost into predicted seconds."""

    def __post_init__(self) -> None:
        if self.hidden < 1 or self.layers < 1 or self.experts_per_token < 1:
            raise ConfigError(
                f"cost transformer needs hidden, layers and experts_per_token >= 1, got hidden={self.hidden}, "
                f"layers={self.layers}, experts_per_token={self.experts_per_token}"
            )
        for name, (low, high) in _TRANSFORMER.items():
            value = getattr(self, name)
            if value is not None:
                check_range(f"cost transformer: {name}", value, low, high)
        if self.kv_heads is not None and (self.heads is None or self.heads % self.kv_heads):
            raise ConfigError(f"cost transformer: kv_heads={self.kv_heads} must divide heads={self.heads}")


_TRANSFORMER: dict[str, tuple[float, float]] = {
    "hidden": (1, 1 << 24),
    "layers": (1, 1 << 20),
    "heads": (1, 1 << 24),
    "kv_heads": (1, 1 << 24),
    "ffn": (1, 1 << 28),
    "experts_per_token": (1, 1 << 16),
    "vocab": (0, (1 << 31) - 1),
    "flops_per_s": (1.0, 1e30),
}
"""Smallest and largest values: with these no cost overflows."""


class AttentionCost(CostStruct, frozen=True, kw_only=True, tag="attention"):
    """Sum of squared document lengths. Exaggerates imbalance: real steps have linear terms too."""


class TokensCost(CostStruct, frozen=True, kw_only=True, tag="tokens"):
    """Number of tokens."""


class FittedCost(CostStruct, frozen=True, kw_only=True, tag="fitted"):
    """`constant + linear * s + quadratic * s * s`, fitted to timed microbatches."""

    linear: float
    quadratic: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        if min(self.linear, self.quadratic, self.constant) < 0 or not self.linear + self.quadratic:
            raise ConfigError(
                "cost fitted needs constant, linear and quadratic >= 0 and linear or quadratic above 0, got "
                f"{self.constant}, {self.linear}, {self.quadratic}"
            )
        for name in ("linear", "quadratic", "constant"):
            value = getattr(self, name)
            if value != 0:
                check_range(f"cost fitted: {name}", value, 1e-30, 1e30, "0 leaves the term out")


class FunctionCost(CostStruct, frozen=True, kw_only=True, tag="function"):
    """A function of arrays: `(num_tokens, num_patches) -> cost`, one entry per document."""

    function: Any
    """Dotted path `package.module:function`, or the function itself from Python."""


CostConfig = TransformerCost | AttentionCost | TokensCost | FittedCost | FunctionCost
