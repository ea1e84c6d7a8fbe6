"""Values that mean nothing, or that the arithmetic behind a setting cannot take, are refused in one line by name."""

import math
from pathlib import Path

import pytest

import msd
from msd.config import Config, parse_config
from msd.core.checks import own_path
from msd.core.mesh import Mesh
from msd.cost.config import FittedCost, TransformerCost
from msd.errors import ConfigError
from msd.loader.config import OnErrorConfig, OnStallConfig
from msd.loader.transforms.config import FilterConfig, ImageConfig, TokensConfig
from msd.planner.config import BalanceConfig, BatchConfig, MixtureConfig, PackingConfig, StageConfig
from msd.sources.config import ReaderConfig, ShuffleConfig

NAN, INF = math.nan, math.inf
SOURCES = {"a": {"rows": [{"ids": [1, 2]}], "transforms": [{"kind": "tokens"}]}}
PLAIN = "sources: {a: /data/a.jsonl}\n"


def refusal(make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def yaml_refusal(text, *overrides):
    return refusal(lambda: parse_config(text, base=Path("/data"), overrides=overrides))


@pytest.mark.parametrize(
    ("struct", "setting", "value"),
    [
        *((TransformerCost, "kv_heads", value) for value in (0, -1)),
        *((TransformerCost, "heads", value) for value in (0, -1)),
        (TransformerCost, "ffn", 0),
        (TransformerCost, "ffn", -100),
        (TransformerCost, "vocab", -1),
        (TransformerCost, "hidden", 10**200),
        (TransformerCost, "layers", 10**300),
        *((TransformerCost, "flops_per_s", value) for value in (0.0, -1.0, NAN, INF, 5e-324)),
        *((FittedCost, "linear", value) for value in (NAN, INF, 1e308, 5e-324)),
        (FittedCost, "constant", 1e308),
        *((BalanceConfig, "min_gain", value) for value in (-1.0, NAN, INF, -INF, 1.5)),
        *((OnStallConfig, "after_s", value) for value in (NAN, INF, 0.0)),
        *((ImageConfig, "min_pixels", value) for value in (-1, 2**70)),
        *((ImageConfig, "bomb_pixels", value) for value in (-1, 0)),
        (ImageConfig, "max_pixels", 10**30),
        (ImageConfig, "patch", 10**30),
        *((FilterConfig, name, -1) for name in ("min_length", "max_length")),
        *((FilterConfig, name, NAN) for name in ("at_least", "at_most")),
        *((BatchConfig, "pad_token_id", value) for value in (-1, 2**31, 10**30)),
        *((BatchConfig, "sequence_length", value) for value in (2**24 + 1, 2**63)),
        *((BatchConfig, "global_batch_size", value) for value in (2**22 + 1, 10**30)),
        *((PackingConfig, "lookahead", value) for value in (0, 2**20 + 1, 10**30)),
        *((StageConfig, name, 10**30) for name in ("step", "ramp")),
        *((ReaderConfig, "max_epochs", value) for value in (INF, NAN, 1e308)),
        (ShuffleConfig, "window", 2**31 + 1),
        *((ShuffleConfig, "block_bytes", value) for value in (10**30, "9" * 400 + "GiB", "2TiB")),
        *((TokensConfig, "append_eos_id", value) for value in (-1, 2**31)),
    ],
)
def test_a_number_outside_what_it_can_mean_is_refused_by_name(struct, setting, value):
    needed = {
        TransformerCost: {"hidden": 8, "layers": 1, "heads": 4},
        FittedCost: {"linear": 1.0, "quadratic": 1.0},
        StageConfig: {"step": 1, "weights": {"a": 1.0}},
        ReaderConfig: {"path": "x"},
    }
    assert setting in refusal(lambda: struct(**needed.get(struct, {}) | {setting: value}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"runtime": {"deadline_s": NAN}}, "runtime.deadline_s"),
        ({"runtime": {"deadline_s": INF}}, "runtime.deadline_s"),
        ({"runtime": {"workers": 2**31}}, "runtime.workers"),
        ({"mixture": {"weights": {"a": 1e308}}}, "weight of 'a'"),
        ({"mesh": {"dp": 1, "pp": 2**31}}, "number of ranks of the mesh"),
        ({"mesh": {"tp": 10**30}}, "number of ranks of the mesh"),
        ({"loaders": 10**30}, "loaders"),
        ({"constructors": 2**31}, "constructors"),
        ({"shadows": 2**31}, "shadows"),
        ({"mesh": {"dp": 1}, "batch": {"sequence_length": 2**24, "global_batch_size": 2**10}}, "a microbatch has"),
    ],
)
def test_a_whole_that_no_machine_holds_is_refused_by_name(settings, named):
    assert named in refusal(lambda: Config(sources=SOURCES, **settings))


def test_the_largest_lookahead_and_sequence_are_still_legal():
    assert BatchConfig(sequence_length=2**24, packing=PackingConfig(lookahead=2**20)).packing.lookahead == 2**20


def test_weights_that_cannot_be_added_are_refused_in_a_stage_too():
    assert "weight of 'b'" in refusal(lambda: MixtureConfig(weights={"a": 1.0, "b": 1e308}))
    assert "weight of 'a'" in refusal(lambda: StageConfig(step=3, weights={"a": 1e308}))


@pytest.mark.parametrize("strategy", [None, False, True, 0, 1.5, NAN, [], {}, "", "x", "x:", ":f", b"a:b"])
def test_a_strategy_is_default_a_dotted_path_or_callable(strategy):
    assert refusal(lambda: Config(sources=SOURCES, strategy=strategy)).startswith("strategy must be default")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 2001-13-45\n" + PLAIN, "line 1: not YAML: '2001-13-45' is no timestamp"),
        ("seed: !!int x\n" + PLAIN, "line 1: not YAML: 'x' is no int"),
        ("seed: !!float ''\n" + PLAIN, "line 1: not YAML: '' is no float"),
        ("seed: !!bool maybe\n" + PLAIN, "line 1: not YAML: 'maybe' is no bool"),
        (PLAIN + "seed: !!timestamp x\n", "line 2: not YAML: 'x' is no timestamp"),
        (PLAIN + f"seed: {'9' * 5000}\n", "line 2: not YAML"),
        ("a: " + "[" * 2000, "nested deeper than"),
        ("a: " + "[" * 100 + "]" * 100, "nested deeper than"),
        ("sources: {a: {path: x, transforms: [{kind: filter, one_of: &x [*x]}]}}", "or hold themselves"),
        ("sources: {a: {path: x, options: &x {b: *x}}}", "or hold themselves"),
        ("a: &a [1,2,3,4,5,6,7,8,9]\n" + "".join(
            f"{x}: &{x} [{', '.join([f'*{y}'] * 9)}]\n" for y, x in zip("abcdefgh", "bcdefghi", strict=True)
        ), "values, aliases written out"),
        ("sources: {a: {path: ~nouser/x.jsonl}}", "sources.a: path '~nouser/x.jsonl': there is no home folder"),
        ("sources: {a: {path: x, on_error: {quarantine: ~nouser/q}}}", "on_error.quarantine '~nouser/q': there is no"),
        ("sources: {a: {path: x, transforms: [{kind: tokenize, tokenizer: ~nouser/t}]}}", "'~nouser/t': there is no"),
        (PLAIN + "checkpoint: {path: c, lease_s: .nan}", "checkpoint.lease_s must lie in [0.01, "),
        (PLAIN + "checkpoint: {path: c, lease_s: -1}", "checkpoint.lease_s must lie in [0.01, "),
        (PLAIN + "checkpoint: {path: ~nouser/c}", "checkpoint.path '~nouser/c': there is no home folder"),
        ("sources: {a: {path: x, transforms: 5}}", "sources.a.transforms must be a list, got int"),
        ("sources: {a: {path: x, transforms: {kind: tokens}}}", "sources.a.transforms must be a list, got dict"),
        ("mesh: {1: 2}\n" + PLAIN, "mesh: a name must be a non-empty string, got 1; quote it"),
        ("1: 2\n" + PLAIN, "a name must be a non-empty string, got 1; quote it"),
        ("sources: {a: {path: x, on: 1}}", "sources.a: a name must be a non-empty string, got True; quote it"),
        ("sources: {a: {path: x, options: {1: 2}}}", "sources.a.options: a name must be a non-empty string, got 1"),
        (PLAIN + "mixture: {weights: {1: 2}}", "mixture.weights: a name must be a non-empty string, got 1; quote it"),
        ("sources: {a: {path: x, transforms: [{kind: select, fields: {1: b}}]}}", "got 1; quote it"),
        ("sources: {a: {path: \"a\\0b\"}}", "has a NUL character"),
        ("sources: {a: {path: x, on_error: {quarantine: \"a\\0b\"}}}", "has a NUL character"),
        (f"sources: {{a: {{path: x, transforms: [{{kind: tokenize, tokenizer: {'e' * 300}}}]}}}}", "is too long for"),
        ("sources: {a: {path: ''}}", "sources.a: path is empty"),
    ],
)  # fmt: skip
def test_yaml_that_cannot_be_meant_is_one_line(text, said):
    assert said in yaml_refusal(text)


@pytest.mark.parametrize(
    "override",
    ["seed=2001-13-45", "seed=!!int x", "seed=" + "[" * 2000, "sources.a=&a [*a]", "sources.a.options=&a {b: *a}"],
)
def test_an_override_that_cannot_be_meant_is_one_line(override):
    yaml_refusal(PLAIN, override)


@pytest.mark.parametrize("place", ["²", "9" * 5000, "-1", "x"])
def test_a_place_in_a_list_is_a_plain_number(place):
    text = "sources: {a: {path: /w, transforms: [{kind: tokens}]}}"
    assert "must be a number below 1" in yaml_refusal(text, f"sources.a.transforms.{place}.field=x")


def test_the_home_folder_is_written_out_from_both_doors(monkeypatch):
    monkeypatch.setenv("HOME", "/data/me")
    text = "sources: {a: {path: ~/a.jsonl, on_error: {quarantine: ~/q}}, b: [~/b, s3://x/~b]}\ncheckpoint: {path: ~/c}"
    python = Config(
        sources={"a": {"path": "~/a.jsonl", "on_error": {"quarantine": "~/q"}}, "b": ["~/b", "s3://x/~b"]},
        checkpoint={"path": "~/c"},
    )
    for found in (parse_config(text, base=Path("/data")), python, python.replace(seed=3)):
        assert found.sources["a"].path == "/data/me/a.jsonl"
        assert found.sources["a"].on_error.quarantine == "/data/me/q"
        assert found.sources["b"].path == ["/data/me/b", "s3://x/~b"]
        assert found.checkpoint.path == "/data/me/c"


def test_a_long_pattern_is_no_long_name():
    pattern = "*" + "[ab]" * 100
    assert own_path(pattern, name="path") == pattern
    assert "too long" in refusal(lambda: own_path("é" * 200, name="path"))
    assert "too long" in refusal(lambda: own_path("a/" * 3000, name="path"))
    assert "no path can" in refusal(lambda: own_path("\ud800", name="path"))


def test_a_value_that_holds_itself_is_refused_from_python_too():
    endless = []
    endless.append(endless)
    source = {"path": "x", "transforms": [{"kind": "filter", "one_of": endless}]}
    assert "hold themselves" in refusal(lambda: Config(sources={"a": source}))


@pytest.mark.parametrize("low", [{"min_length": 5, "max_length": 4}, {"at_least": 1.0, "at_most": 0.5}])
def test_a_filter_that_nothing_passes_is_refused(low):
    assert "nothing passes" in refusal(lambda: FilterConfig(**low))


@pytest.mark.parametrize("value", [None, "x", 1.5, True])
def test_mesh_sizes_and_ranks_are_integers(value):
    assert "mesh.dp must be an integer" in refusal(lambda: Mesh.of(dp=value))
    assert "rank must be an integer" in refusal(lambda: Mesh.of(dp=2).check_rank(value))


def test_settings_are_given_by_name_and_needed_ones_are_named():
    assert "by name" in refusal(lambda: Config(SOURCES))
    assert "Config needs sources" in refusal(lambda: Config())
    assert "FittedCost needs quadratic" in refusal(lambda: FittedCost(linear=1.0))


@pytest.mark.parametrize("path", [5, None, {"sources": {}}, b"x.yaml"])
def test_load_config_takes_a_path(path):
    assert "takes the path of a YAML file" in refusal(lambda: msd.load_config(path))


def test_load_config_says_what_no_path_can_be():
    assert "NUL" in refusal(lambda: msd.load_config("a\0b"))


def test_quarantine_of_a_copy_stays_where_it_was(monkeypatch):
    monkeypatch.setenv("HOME", "/data/me")
    first = OnErrorConfig(quarantine="~/q")
    monkeypatch.setenv("HOME", "/data/you")
    assert Config(sources={"a": {"path": "x", "on_error": first}}).sources["a"].on_error.quarantine == "/data/me/q"
