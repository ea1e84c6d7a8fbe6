"""Costs from metadata alone: FLOPs of a transformer, sums of squares, tokens, a fitted curve, a user's function."""

# D = documents.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.cost import CostFunction
from msd.cost.config import AttentionCost, CostConfig, FittedCost, FunctionCost, TokensCost, TransformerCost
from msd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Polynomial:
    """`constant + linear * s + quadratic * s * s` for a document of length s; 0 for a document of length 0."""

    linear: float
    quadratic: float
    constant: float = 0.0
    is_flops: bool = False
    flops_per_s: float | None = None

    def __call__(self, num_tokens_D: Int64Array, num_patches_D: Int64Array) -> Float64Array:
        """Return the cost of each document from its length, the first argument."""
        length_D = np.asarray(num_tokens_D, dtype=np.float64)
        cost_D: Float64Array = self.constant * (length_D > 0) + length_D * (self.linear + self.quadratic * length_D)
        return cost_D

    def __str__(self) -> str:
        constant = f"{self.constant:.6g} + " if self.constant else ""
        return f"{constant}{self.linear:.6g} s + {self.quadratic:.6g} s^2"


@dataclass(frozen=True, slots=True)
class UserCost:
    """A user's function of (length, patches) arrays. Its units are its own, so no step time follows from them."""

    function: Callable[[Int64Array, Int64Array], Any]
    is_flops: bool = False
    flops_per_s: float | None = None

    def __call__(self, num_tokens_D: Int64Array, num_patches_D: Int64Array) -> Any:
        """Return what the function does; whoever asks checks it."""
        return self.function(num_tokens_D, num_patches_D)

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", self.function))


def transformer_flops(config: TransformerCost) -> Polynomial:
    """Return FLOPs of a transformer as a polynomial of the document length s.

    Counting a multiply and an add as 2 FLOPs, one layer of hidden size h does in its forward pass

    - `4 h^2 s` for queries and outputs and `4 h (h kv / heads) s` for keys and values (grouped-query attention);
    - `2 m h f s` for an MLP of inner width f with m = 2 matrices, 3 when gated, for each expert of a token;
    - `4 h s^2` for scores and their product with the values, of which a causal mask leaves half.

    With multi-head attention and an ungated MLP of width 4h these are the familiar `24 h^2 s + 4 h s^2` (Narayanan et
    al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", appendix; with their batch of B
    sequences written out). The output projection adds `2 h vocab s` once. The backward pass does twice the forward
    pass: training is 3 times. Attention of packed documents is masked between them, so costs of documents add up.

    A vision encoder is the same with `causal: false` and s in patches.
    """
    hidden = config.hidden
    kv_share = config.kv_heads / config.heads if config.kv_heads and config.heads else 1.0
    ffn = 4 * hidden if config.ffn is None else config.ffn
    matrices = 3 if config.gated else 2
    projections = 4.0 * hidden * hidden * (1.0 + kv_share)
    mlp = 2.0 * matrices * hidden * ffn * config.experts_per_token
    passes = 3.0 if config.training else 1.0
    return Polynomial(
        linear=passes * (config.layers * (projections + mlp) + 2.0 * hidden * config.vocab),
        quadratic=passes * config.layers * (2.0 if config.causal else 4.0) * hidden,
        is_flops=True,
        flops_per_s=config.flops_per_s,
    )


def build_cost(config: CostConfig, resolve: Callable[[str], Any]) -> CostFunction:
    """Return the cost function that a configuration names.

    Its first argument is the length that the module sees: tokens for the backbone, patches for the encoder.

    Args:
        config: Which function.
        resolve: Returns the object at a dotted path, for `kind: function`.

    Raises:
        ConfigError: If a function cannot be called.
    """
    match config:
        case TransformerCost():
            return transformer_flops(config)
        case AttentionCost():
            return Polynomial(linear=0.0, quadratic=1.0)
        case TokensCost():
            return Polynomial(linear=1.0, quadratic=0.0)
        case FittedCost():
            return Polynomial(linear=config.linear, quadratic=config.quadratic, constant=config.constant)
        case FunctionCost():
            found = resolve(config.function) if isinstance(config.function, str) else config.function
            if not callable(found):
                raise ConfigError(f"cost function {config.function!r} is not callable; give (length, patches) -> cost")
            return UserCost(found)
