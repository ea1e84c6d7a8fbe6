import numpy as np
import pytest

from msd.cost.analytic import build_cost, transformer_flops
from msd.cost.config import AttentionCost, FittedCost, FunctionCost, TokensCost, TransformerCost
from msd.errors import ConfigError

LENGTHS = np.array([0, 1, 100, 4096])
NO_PATCHES = np.zeros(4, dtype=np.int64)


def refuse(path):
    raise ConfigError(f"cannot import {path}")


def flops(**changes):
    config = TransformerCost(**{"hidden": 64, "layers": 1, "causal": False, "training": False, **changes})
    return transformer_flops(config)(np.array([10]), np.zeros(1, dtype=np.int64))[0]


def test_a_plain_layer_costs_24_h2_s_plus_4_h_s2():
    """Answers LB-3."""
    assert flops() == 24 * 64**2 * 10 + 4 * 64 * 10**2


def test_a_causal_mask_halves_the_attention_term_only():
    assert flops() - flops(causal=True) == 2 * 64 * 10**2


def test_training_is_three_forward_passes_and_layers_multiply():
    assert flops(training=True) == 3 * flops()
    assert flops(layers=7) == 7 * flops()


def test_grouped_query_attention_saves_keys_and_values():
    assert flops(heads=8) - flops(heads=8, kv_heads=2) == 4 * 64**2 * 10 * (1 - 2 / 8)


def test_a_gated_mlp_has_three_matrices_of_its_own_width():
    plain, gated = flops(ffn=200), flops(ffn=200, gated=True)
    assert gated - plain == 2 * 64 * 200 * 10
    assert flops(ffn=256) == flops()


def test_a_token_pays_for_the_experts_it_visits():
    assert flops(experts_per_token=2) - flops() == 16 * 64**2 * 10


def test_the_output_projection_counts_once():
    assert flops(vocab=1000, layers=3) - flops(layers=3) == 2 * 64 * 1000 * 10


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AttentionCost(), [0, 1, 10_000, 4096**2]),
        (TokensCost(), [0, 1, 100, 4096]),
        (FittedCost(constant=5, linear=2, quadratic=0.5), [0, 7.5, 5205, 5 + 8192 + 0.5 * 4096**2]),
        (FunctionCost(function=lambda length, patches: 3 * length + patches), [0, 3, 300, 12288]),
    ],
)
def test_the_other_functions_follow_their_formula(config, expected):
    cost = build_cost(config, refuse)
    assert cost(LENGTHS, NO_PATCHES).tolist() == expected
    assert not cost.is_flops


def test_flops_per_s_is_passed_on():
    cost = build_cost(TransformerCost(hidden=8, layers=1, flops_per_s=4e14), refuse)
    assert (cost.is_flops, cost.flops_per_s) == (True, 4e14)


def test_a_dotted_path_is_resolved_and_must_be_callable():
    cost = build_cost(FunctionCost(function="mine:cost"), lambda path: lambda n, p: n + len(path))
    assert cost(LENGTHS, NO_PATCHES).tolist() == [9, 10, 109, 4105]
    with pytest.raises(ConfigError, match="not callable"):
        build_cost(FunctionCost(function="mine:cost"), lambda path: 3)
