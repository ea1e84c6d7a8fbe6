"""One configuration, two doors: YAML and Python give the same values and refuse the same mistakes."""

import pickle
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import msd
from msd.build import build_strategy
from msd.config import Config, import_dotted, load_config, parse_config
from msd.cost.config import FunctionCost, TokensCost, TransformerCost
from msd.errors import ConfigError
from msd.loader.transforms.config import FunctionConfig, TokenizeConfig, TokensConfig
from msd.planner.strategies.curriculum import curriculum

WEB = {"web": {"format": "jsonl", "path": "web/*.jsonl"}}
BASE = Path("/data/run")


def double(sample, rng):
    return [sample, sample]


def quadratic(num_tokens, num_patches):
    return num_tokens.astype(np.float64) ** 2


def config(**settings):
    return Config(sources=settings.pop("sources", WEB), **settings)


def parsed(text, *overrides):
    return parse_config(textwrap.dedent(text), base=BASE, overrides=overrides)


def plain(value):
    return msgspec.to_builtins(value)


def test_both_doors_give_the_same_values():
    text = """
        seed: 5
        sources:
          web: {path: /data/web.jsonl, split: [0.0, 0.5], max_epochs: 2, shuffle: {window: 3},
                transforms: [{kind: tokenize, tokenizer: bytes}], on_error: {max_rate: 0.5}}
          code: /data/code/*.parquet
        mixture: {unit: samples, weights: {web: 3, code: 1}, schedule: [{step: 9, weights: {web: 1}, ramp: 2}]}
        batch: {sequence_length: 128, global_batch_size: 8, packing: {method: concat}}
        mesh: {dp: 2, cp: 2}
        num_microbatches: 2
        cost: {backbone: {kind: tokens}}
    """
    python = Config(
        seed=5,
        sources={
            "web": {
                "path": "/data/web.jsonl", "split": (0.0, 0.5), "max_epochs": 2, "shuffle": {"window": 3},
                "transforms": [TokenizeConfig(tokenizer="bytes")], "on_error": {"max_rate": 0.5},
            },
            "code": Path("/data/code/*.parquet"),
        },
        mixture={
            "unit": "samples", "weights": {"web": 3, "code": 1},
            "schedule": [{"step": 9, "weights": {"web": 1}, "ramp": 2}],
        },
        batch={"sequence_length": 128, "global_batch_size": 8, "packing": {"method": "concat"}},
        mesh={"dp": 2, "cp": 2},
        num_microbatches=2,
        cost={"backbone": TokensCost()},
    )  # fmt: skip
    assert plain(parsed(text)) == plain(python)


def test_what_is_left_out_has_the_values_of_the_contract():
    found = plain(config())
    source = found.pop("sources")["web"]
    assert found == {
        "seed": 17,
        "mixture": {
            "unit": "tokens", "weights": None, "mode": "explicit", "temperature": 1.0, "clock": "step", "schedule": [],
            "repetitions": None, "on_exhausted": None, "feedback": None,
        },
        "batch": {
            "sequence_length": 4096, "global_batch_size": 64, "tokens_per_step": None, "multiple_of": "auto",
            "schedule": [],
            "packing": {"method": "best_fit", "lookahead": "auto", "objective": "fill", "max_age": 2},
            "limits": {"patches": None, "image_tokens": None, "images": None, "attention": None}, "oversize": "error",
            "document_multiple": "auto", "sequence_parallel": False, "pad_token_id": 0, "last": "drop",
            "slice": "zigzag",
        },
        "mesh": {"pp": 1, "dp": 4, "cp": 1, "tp": 1},
        "num_microbatches": 4,
        "strategy": "default",
        "balance": {
            "method": "lpt", "across": ["bucket", "microbatch"], "objective": "auto", "min_gain": 0.0, "align": [],
        },
        "cost": {"backbone": {"kind": "transformer", **plain(TransformerCost(hidden=4096, layers=32))}},
        "encoder": {"ranks": "world", "every": "auto"},
        "broadcast": [], "fields_by_stage": False, "stages": {"per_rank": 1, "style": "loop"},
        "loaders": "auto", "constructors": "auto", "shadows": 0,
        "runtime": {
            "kind": "dask", "scheduler": None, "workers": 2, "compact": True, "deadline_s": 300.0, "silence_s": 3.0,
            "host_memory": None, "fill_shadows": False, "events": None,
        },
        "checkpoint": None,
            "scaling": None,
            "security": None,
    }  # fmt: skip
    expected = {
        "split": (0.0, 1.0), "overflow": "split", "shuffle": {"block_bytes": "1MiB", "window": "auto"},
        "max_epochs": None, "on_exhausted": None,
        "on_error": {"policy": "skip", "max_rate": 0.01, "quarantine": None, "hang_s": 120.0},
        "on_stall": {"after_s": 60.0, "then": "wait"}, "engine": "pyarrow", "columns": None, "transforms": [],
    }  # fmt: skip
    assert {key: source[key] for key in expected} == expected
    assert config().end_of("web") == "repeat"


def test_derived_values_follow_the_geometry():
    one = config(mesh={"dp": 2, "cp": 4, "tp": 2}, num_microbatches=8, batch={"sequence_parallel": True})
    assert one.place.world_size == 16
    assert one.sequences_per_microbatch == 4
    assert one.document_multiple == 16
    assert one.lookahead == 32
    assert config(batch={"global_batch_size": 16}).lookahead == 16
    assert config(sources=WEB | {"code": "c"}, mixture={"weights": {"web": 2}}).weights == {"web": 2.0, "code": 0.0}


def test_relative_paths_resolve_against_the_file(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "tokenizer.json").write_text("{}")
    file = tmp_path / "configs" / "run.yaml"
    file.write_text(
        "sources:\n"
        "  web:\n"
        "    path: [../web/*.jsonl, /data/more.jsonl, 's3://bucket/a.jsonl']\n"
        "    transforms: [{kind: tokenize, tokenizer: ../tokenizer.json}]\n"
        "    on_error: {quarantine: bad.jsonl}\n"
        "  code: code\n"
    )
    found = load_config(file).sources
    assert found["web"].path == [str(tmp_path / "web/*.jsonl"), "/data/more.jsonl", "s3://bucket/a.jsonl"]
    assert found["web"].transforms[0].tokenizer == str(tmp_path / "tokenizer.json")
    assert found["web"].on_error.quarantine == str(tmp_path / "configs/bad.jsonl")
    assert found["code"].path == str(tmp_path / "configs/code")


def test_overrides_win_over_the_file_and_are_checked_like_it():
    text = "sources: {web: {path: /w, transforms: [{kind: tokens}]}}\nmesh: {dp: 4, tp: 1}\n"
    found = parsed(text, "mesh.dp=2", "sources.web.transforms.0.field=input", "batch.packing={method: none}", "seed=3")
    assert found.mesh == {"dp": 2, "tp": 1}
    assert found.sources["web"].transforms == [TokensConfig(field="input")]
    assert found.batch.packing.method == "none"
    assert found.seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mesh.dp", "override 'mesh.dp' must look like a.b=c"),
        ("=3", "override '=3' must look like a.b=c"),
        ("seed.deep.er=1", "'deep' lies inside a plain value"),
        ("seed.deep=1", "'deep' lies inside a plain value"),
        ("sources.web.transforms.1.field=a", "'1' must be a number below 1"),
        ("sources.web.transforms.x=a", "'x' must be a number below 1"),
        ("mesh=[", "'[' is not a YAML value"),
        ("batch.packing.metod=concat", "batch.packing.metod: unknown key 'metod'; did you mean 'method'?"),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(override, message):
    text = "seed: 1\nsources: {web: {path: /w, transforms: [{kind: tokens}]}}\n"
    with pytest.raises(ConfigError) as caught:
        parsed(text, override)
    assert message in str(caught.value)


def source(**settings):
    return {"sources": {"web": {"format": "jsonl", "path": "w"} | settings}}


MISTAKES = [
    ({"sources": {}}, "sources is empty; name at least one"),
    ({"sources": ["w"]}, "sources must be a mapping from names to sources, got list"),
    ({"sources": {"web": None}}, "sources.web is empty; give it a path"),
    ({"sources": {1: "w"}}, "a name must be a non-empty string, got 1; quote it"),
    ({"seed": "x"}, "seed: expected 'int', got 'str'"),
    ({"mixture": 3}, "mixture: expected 'mapping', got 'int'"),
    ({"mixture": {"wieghts": {}}}, "mixture.wieghts: unknown key 'wieghts'; did you mean 'weights'?"),
    ({"mixture": {"weights": {"wbe": 1}}}, "there is no source 'wbe' (sources: web); did you mean 'web'?"),
    ({"mixture": {"weights": {"web": -1}}}, "weight of 'web' must be 0 or more, got -1.0"),
    ({"mixture": {"weights": {"web": float("nan")}}}, "weight of 'web' must be 0 or more, got nan"),
    ({"mixture": {"weights": {"web": 0}}}, "mixture.weights: all weights are 0"),
    ({"mixture": {"weights": {}}}, "mixture.weights: all weights are 0"),
    ({"mixture": {"unit": "token"}}, "mixture.unit: 'token' is not a choice; did you mean 'tokens'?"),
    ({"mixture": {"schedule": [{"step": 5, "weights": {"web": 0}}]}}, "stage at step 5: all weights are 0"),
    ({"mixture": {"schedule": [{"step": -5, "weights": {"web": 1}}]}}, "needs step >= 0 and ramp >= 0, got step=-5"),
    (
        {"mixture": {"schedule": [{"step": 5, "weights": {"web": 1}}, {"step": 5, "weights": {"web": 1}}]}},
        "mixture.schedule must be in increasing order of step, got steps [5, 5]",
    ),
    ({"mixture": {"schedule": [{"step": 5, "weights": {"x": 1}}]}}, "stage at step 5: there is no source 'x'"),
    ({"mixture": {"schedule": [{"weights": {"web": 1}}]}}, "a schedule stage starts at one place, got step=None, at=N"),
    ({"mixture": {"schedule": [{"at": 5, "weights": {"web": 1}}]}}, "with mixture.clock step its place is written st"),
    ({"mixture": {"schedule": [{"step": 5}]}}, "stage at step 5 has no weights; give it some, or mode: proportional"),
    (
        {"mixture": {"clock": "tokens", "schedule": [{"step": 5, "weights": {"web": 1}}]}},
        "mixture.schedule stage at step 5: with mixture.clock tokens its place is written at: N, not step: N",
    ),
    (
        {"mixture": {"clock": "samples", "schedule": [{"at": 0.5, "weights": {"web": 1}}]}},
        "mixture.schedule stage at 0.5: clock samples counts whole numbers, got at=0.5, ramp=0",
    ),
    ({"mixture": {"clock": "minutes"}}, "mixture.clock: 'minutes' is not a choice; the choices are step, epoch, tok"),
    ({"mixture": {"mode": "temprature"}}, "mixture.mode: 'temprature' is not a choice; did you mean 'temperature'?"),
    ({"mixture": {"temperature": 3}}, "mixture: temperature 3.0 needs mode: temperature, got mode: explicit"),
    ({"mixture": {"mode": "temperature", "temperature": 0}}, "mixture: temperature must lie in [0.1, 1000000000.0], g"),
    ({"mixture": {"weights": {"all": {"weights": {"wbe": 1}}}}}, "mixture.weights: there is no source 'wbe' (sources:"),
    ({"mixture": {"weights": {"all": {"weights": {}}}}}, "mixture.weights.all: all weights are 0, so nothing could"),
    ({"mixture": {"weights": {"all": {"weigths": {}}}}}, "mixture.weights.all.weigths: unknown key 'weigths'; did you"),
    ({"mixture": {"weights": {"web": {"weights": {"web": 1}}}}}, "mixture.weights: 'web' is a source; give the group"),
    ({"mixture": {"weights": {"all": {"weight": -1, "weights": {"web": 1}}}}}, "weight of 'all' must be 0 or more, go"),
    (
        {"mixture": {"weights": {"web": 1, "all": {"weights": {"web": 1}}}}},
        "; a source has one place in the tree",
    ),
    ({"mixture": {"repetitions": 0}}, "mixture.repetitions must lie in [1e-09, 1000000000.0], got 0.0; leave it out t"),
    ({"mixture": {"repetitions": {"wbe": 1}}}, "mixture.repetitions: there is no source 'wbe' (sources: web); did you"),
    ({"mixture": {"on_exhausted": "drop"}}, "mixture.on_exhausted: drop needs a source that ends; set mixture.repetit"),
    (
        {"mixture": {"on_exhausted": "repeat", "repetitions": 2}},
        "mixture.on_exhausted: repeat contradicts that source 'web' ends after 2 epochs; use stop, drop or error",
    ),
    (
        source(on_exhausted="repeat") | {"mixture": {"repetitions": 2}},
        "sources.web: on_exhausted: repeat contradicts mixture.repetitions 2; leave one of them out",
    ),
    ({"mixture": {"feedback": "steer"}}, "mixture.feedback must be a dotted path package.module:function, or from Pyt"),
    ({"mixture": {"feedback": {"function": "a:b", "every": 0}}}, "mixture.feedback.every must lie in [1, "),
    (
        {"mixture": {"feedback": "a:b", "schedule": [{"step": 5, "weights": {"web": 1}}]}},
        "mixture.feedback and mixture.schedule both move the weights; leave one of them out",
    ),
    ({"batch": {"sequence_len": 8}}, "batch.sequence_len: unknown key 'sequence_len'; did you mean 'sequence_length'?"),
    ({"batch": {"sequence_length": 8.5}}, "batch.sequence_length: expected 'int', got 'float' (8.5)"),
    ({"batch": {"sequence_length": "4k"}}, "batch.sequence_length: expected 'int', got 'str' ('4k')"),
    (
        {"mixture": {"clock": "tokens", "schedule": [{"at": "1e9", "weights": {"web": 1}}]}},
        "mixture.schedule[0].at: expected 'int | float | null', got 'str' ('1e9'); that is text; write 1000000000",
    ),
    ({"mixture": {"weights": {"web": "high"}}}, "mixture.weights.web: expected 'float | mapping', got 'str' ('high')"),
    ({"mixture": {"weights": {"a": {"weight": 1}}}}, "mixture.weights.a: missing required key 'weights'"),
    (
        {"mixture": {"weights": {"a": {"weights": {"b": {"weights": {"web": None}}}}}}},
        "mixture.weights.a.weights.b.weights.web: expected 'float | mapping', got 'null'",
    ),
    ({"mixture": {"repetitions": {"web": "four"}}}, "mixture.repetitions.web: expected 'float', got 'str' ('four')"),
    ({"batch": {"multiple_of": "all"}}, "batch.multiple_of: 'all' is not a choice; the choices are auto, a whole numb"),
    ({"batch": {"multiple_of": "1e3"}}, "batch.multiple_of: '1e3' is not a choice; that is text; write 1000"),
    ({"strategy": {"options": {"until": 3}}}, "strategy must be default, packed_lm, "),
    (
        source(transforms=[{"kind": "chat", "tokenizer": "bytes", "template": {"user": {"prefix": 3}}}]),
        "sources.web.transforms[0].template.user.prefix: expected 'str', got 'int' (3)",
    ),
    (
        source(transforms=[{"kind": "chat", "tokenizer": "bytes", "roles": {"human": 3}}]),
        "sources.web.transforms[0].roles.human: expected 'str', got 'int' (3)",
    ),
    ({"batch": {"sequence_length": 1}}, "batch.sequence_length must be at least 2 tokens, got 1"),
    ({"batch": {"global_batch_size": 0}}, "batch.global_batch_size must be at least 1 sequence, got 0"),
    ({"batch": {"global_batch_size": 40}}, "= 4 * 4 = 16; set it to a multiple of 16, for instance 32"),
    ({"batch": {"document_multiple": 0}}, "batch.document_multiple must be auto or lie in [1, sequence_length=4096]"),
    ({"batch": {"pad_token_id": -1}}, "batch.pad_token_id must be a token id, 0 or more, got -1"),
    ({"batch": {"packing": "concat"}}, "batch.packing: expected 'mapping', got 'concat'; write packing: {method:"),
    ({"runtime": "local"}, "runtime: expected 'mapping', got 'local'; write runtime: {kind: local}"),
    (source(transforms=["tokenize"]), "sources.web.transforms[0]: expected 'mapping', got 'tokenize'; write {kind: to"),
    (source(split=0.9), "sources.web.split: expected 'list', got 'float' (0.9); write [from, to], for instance"),
    ({"source": WEB}, "source: unknown key 'source'; did you mean 'sources'?"),
    ({"sources": WEB, "mesj": {}}, "mesj: unknown key 'mesj'; did you mean 'mesh'?"),
    ({"batch": {"packing": {"method": "bestfit"}}}, "'bestfit' is not a choice; did you mean 'best_fit'?"),
    ({"batch": {"packing": {"objective": "cost"}}}, "objective cost needs samples in hand, which best_fit has not"),
    ({"batch": {"packing": {"method": "first_fit_decreasing", "max_age": 1}}}, "batch.packing.max_age must lie in [2,"),
    ({"batch": {"limits": {"patches": 0}}}, "batch.limits.patches must lie in [1,"),
    ({"batch": {"schedule": [{"step": 5}]}}, "batch.schedule stage at step 5 changes nothing"),
    ({"batch": {"schedule": [{"step": 5, "sequence_length": 64, "ramp": 3}]}}, "but sequence_length changes at once"),
    (
        {"batch": {"schedule": [{"step": 5, "tokens_per_step": 64}]}},
        "step 5 sets tokens_per_step, but the run counts global_batch_size from its start; set global_batch_size in "
        "the stage, or tokens_per_step in batch",
    ),
    (
        {"batch": {"tokens_per_step": 66_000, "schedule": [{"step": 5, "global_batch_size": 64}]}},
        "but the run counts tokens_per_step from its start; set tokens_per_step in the stage",
    ),
    (
        {"batch": {"schedule": [{"step": 5, "global_batch_size": 40}]}},
        "global_batch_size 40 is not a multiple of batch.multiple_of 16, which is dp * num_microbatches; set it to one",
    ),
    (
        {"batch": {"multiple_of": 32, "schedule": [{"step": 5, "global_batch_size": 80}]}},
        "global_batch_size 80 is not a multiple of batch.multiple_of 32; set it to one, for instance 64",
    ),
    ({"batch": {"schedule": [{"step": 9, "sequence_length": 64}, {"step": 5, "sequence_length": 32}]}},
     "batch.schedule must be in increasing order of step"),
    ({"batch": {"tokens_per_step": 60_000, "schedule": [{"step": 9, "sequence_length": 8192}]}},
     "batch.tokens_per_step is 60000 at step 0, less than multiple_of * sequence_length = 16 * 4096 = 65536; set"),
    ({"batch": {"tokens_per_step": 66_000, "schedule": [{"step": 9, "sequence_length": 8192}]}},
     "batch.tokens_per_step is 66000 at step 9, less than multiple_of * sequence_length = 16 * 8192 = 131072"),
    ({"batch": {"multiple_of": 24}}, "batch.multiple_of 24 does not divide by dp * num_microbatches = 4 * 4 = 16"),
    ({"mesh": {"cp": 2}, "batch": {"schedule": [{"step": 5, "sequence_length": 1002}]}},
     "batch.sequence_length 1002 is not a multiple of document_multiple 4; set it to 1000"),
    ({"batch": {"packing": {"lookahead": 0}}}, "batch.packing.lookahead must be auto or at least 1 sample, got 0"),
    ({"batch": {"last": "keep"}}, "batch.last: 'keep' is not a choice; the choices are drop, pad, repeat_tail"),
    ({"mesh": {"xp": 2}}, "mesh has no axis 'xp'; the axes are pp, dp, cp, tp"),
    ({"mesh": {"dp": 0}}, "mesh sizes must be at least 1, got dp=0"),
    ({"mesh": {"dp": "two"}}, "mesh.dp: expected 'int', got 'str'"),
    ({"mesh": {"dp": 3}}, "batch.global_batch_size 64 does not divide by dp * num_microbatches"),
    ({"mesh": {"dp": 4, "cp": 3}}, "4096 is not a multiple of document_multiple 6; set it to 4092"),
    ({"mesh": {"dp": 4, "cp": 2}, "batch": {"document_multiple": 2}}, "must be a multiple of 2 * cp = 4"),
    ({"num_microbatches": 0}, "num_microbatches must be at least 1, got 0"),
    ({"loaders": {"wb": 1}}, "loaders: there is no source 'wb'"),
    ({"loaders": 0}, "loaders must be at least 1, got 0"),
    ({"constructors": 0}, "constructors must be at least 1, got 0"),
    ({"shadows": -1}, "shadows must be 0 or more, got -1"),
    ({"broadcast": ["dp"]}, "broadcast: [dp] would give every rank the same data"),
    ({"broadcast": ["tpp"]}, "broadcast.tpp: unknown key 'tpp'; did you mean 'tp'?"),
    ({"strategy": "nosuch"}, "strategy must be default, packed_lm, long_short, "),
    ({"strategy": {"name": "curriculum"}}, "strategy.name: unknown key 'name'; the keys here are function, options"),
    ({"strategy": {"function": "curriculum", "options": [1]}}, "strategy.options must be a mapping from names"),
    ({"stages": {"per_rank": 0}}, "stages.per_rank must lie in [1, "),
    ({"stages": {"style": "u"}}, "stages.style: 'u' is not a choice; the choices are loop, v"),
    ({"mesh": {"dp": 2, "dp_shard": 2}}, "mesh names dp and dp_shard; dp is dp_replicate * dp_shard"),
    ({"mesh": {"dp_shard": 2}, "broadcast": ["dp_shard"]}, "broadcast: [dp_shard] would give every rank the same"),
    ({"broadcast": ["ep"]}, "broadcast.ep: unknown key 'ep'"),
    (
        {"mesh": {"dp": 1, "cp": 3}, "batch": {"slice": "headtail"}},
        "batch.sequence_length 4096 must be a multiple of 2 * cp = 6 for batch.slice: headtail; set it to 4098",
    ),
    ({"balance": {"method": "lptt"}}, "balance.method: 'lptt' is not a choice; did you mean 'lpt'?"),
    ({"balance": {"across": "bucket"}}, "balance.across: expected 'list', got 'str'"),
    ({"cost": {}}, "cost needs an entry backbone"),
    ({"cost": {"bckbone": {"kind": "tokens"}}}, "cost.bckbone: unknown key 'bckbone'; did you mean 'backbone'?"),
    ({"cost": {"backbone": {"kind": "transformr"}}}, "cost.backbone.kind: 'transformr' is not a choice"),
    ({"cost": {"backbone": {"kind": "transformer", "hidden": 8}}}, "cost.backbone: missing required key 'layers'"),
    ({"cost": {"backbone": {"kind": "transformer", "hidden": 0, "layers": 1}}}, "needs hidden, layers and experts_per"),
    (
        {"cost": {"backbone": {"kind": "transformer", "hidden": 8, "layers": 1, "kv_heads": 3, "heads": 8}}},
        "kv_heads=3 must divide heads=8",
    ),
    ({"cost": {"backbone": {"kind": "fitted", "linear": -1, "quadratic": 0}}}, "cost fitted needs constant, linear"),
    ({"runtime": {"kind": "ray"}}, "runtime.kind: 'ray' is not a choice; the choices are local, dask"),
    ({"runtime": {"workers": 0}}, "runtime.workers must be at least 1 loader host, got 0"),
    ({"runtime": {"deadline_s": 0}}, "runtime.deadline_s must be above 0 seconds, got 0.0"),
    ({"checkpoint": {"path": "c", "every": 0}}, "checkpoint needs every >= 1 and keep >= 1, got every=0"),
    ({"checkpoint": {}}, "checkpoint: missing required key 'path'"),
    (source(format="jsn"), "sources.web: format must be one of auto, parquet, jsonl"),
    ({"sources": {"web": {"format": "jsonl"}}}, "sources.web: format jsonl needs a path"),
    ({"sources": {"web": {"format": "memory"}}}, "sources.web: format memory needs rows"),
    ({"sources": {"web": {"format": "class"}}}, "sources.web: format class needs cls"),
    (source(pth="x"), "sources.web.pth: unknown key 'pth'; did you mean 'path'?"),
    (source(split=[0.5, 0.2]), "sources.web: split must be two fractions with 0 <= low < high <= 1"),
    (source(max_epochs=0), "sources.web: max_epochs must be above 0 or null (for ever), got 0.0"),
    (source(on_exhausted="stop"), "on_exhausted: stop needs max_epochs"),
    (source(on_exhausted="repeat", max_epochs=1), "on_exhausted: repeat contradicts max_epochs"),
    (source(on_error={"max_rate": 2}), "on_error.max_rate must lie in [0, 1], got 2.0"),
    (source(on_stall={"after_s": 0}), "on_stall.after_s must be above 0 seconds, got 0.0"),
    (source(shuffle={"window": 0}), "shuffle.window must be auto or at least 1 block, got 0"),
    (source(shuffle={"block_bytes": "huge"}), "shuffle.block_bytes must be a size such as 1MiB or 65536, got 'huge'"),
    (source(overflow="cut"), "sources.web.overflow: 'cut' is not a choice; the choices are split, truncate, drop"),
    (source(transforms={"kind": "tokens"}), "sources.web.transforms must be a list, got dict"),
    (source(transforms=[{"kind": "tokenise"}]), "'tokenise' is not a choice; did you mean 'tokenize'?"),
    (source(transforms=[{"field": "a"}]), "sources.web.transforms[0].kind: missing; one of tokenize"),
    (source(transforms=[{"kind": "tokens", "feild": "a"}]), "[0].feild: unknown key 'feild'; did you mean 'field'?"),
    (source(transforms=[{"kind": "tokenize", "tokenizer": "no.json"}]), "is not a file; give the path of a"),
    (source(transforms=[{"kind": "chunk", "size": 4, "overlap": 4}]), "chunk needs size >= 1 and 0 <= overlap < size"),
    (source(transforms=[{"kind": "image", "patch": 0}]), "image patch and merge must be at least 1"),
    (source(transforms=[{"kind": "image", "max_pixels": 9}]), "image max_pixels 9 is below one merged patch of 784"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_each_mistake_is_one_line_that_names_setting_value_and_remedy(settings, message):
    with pytest.raises(ConfigError) as caught:
        Config(**({"sources": WEB} | settings))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("settings", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_the_yaml_door_refuses_the_same_mistakes(settings, message):
    import yaml

    text = yaml.safe_dump({"sources": WEB} | settings)
    with pytest.raises(ConfigError) as caught:
        parse_config(text, base=BASE, name="run.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("run.yaml: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a configuration is a mapping with at least `sources:`, got NoneType"),
        ("- 1", "a configuration is a mapping with at least `sources:`, got list"),
        ("seed: 1", "sources is empty; name at least one"),
        ("a: [", "configuration line 1: not YAML"),
        ("seed: 1\nseed: 2", "configuration line 2: not YAML: key 'seed' stands twice"),
        ("sources:\n  web: w\n  web: v", "configuration line 3: not YAML: key 'web' stands twice"),
        ("null: 1\nsources: {web: w}", "a name must be a non-empty string, got None; quote it"),
        ("mixtures: {}\nsources: {web: w}", "unknown key 'mixtures'; did you mean 'mixture'?"),
    ],
)
def test_a_text_that_is_no_configuration_is_refused(text, message):
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert message in str(caught.value)


def test_a_missing_file_is_refused_with_a_way_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml.*No such file.*`msd init PATH` writes one"):
        load_config(tmp_path / "none.yaml")


def test_a_source_may_be_whatever_python_has_at_hand():
    """Answers TT-13."""

    class Numbers:
        def __iter__(self):
            return iter([{"ids": [1]}])

    rows = [{"text": "a"}]
    found = Config(
        sources={
            "rows": rows, "settings": {"rows": rows}, "path": Path("a.jsonl"), "paths": ["a.jsonl", "b.jsonl"],
            "kind": Numbers, "factory": lambda: iter(rows), "dotted": {"format": "package.module:Class"},
        },
    ).sources  # fmt: skip
    assert found["rows"].rows is rows
    assert found["settings"].format == "memory"
    assert found["path"].path == "a.jsonl"
    assert found["paths"].path == ["a.jsonl", "b.jsonl"]
    assert found["kind"].cls is Numbers
    assert found["factory"].format == "class"
    assert found["dotted"].cls == "package.module:Class"


def test_functions_are_taken_by_value_or_by_dotted_path():
    transforms = [double, {"kind": "function", "function": double}, {"kind": "package.module:double"}]
    found = config(sources={"web": {"path": "w", "transforms": transforms}}, cost=quadratic, strategy=quadratic)
    assert found.sources["web"].transforms == [
        FunctionConfig(function=double),
        FunctionConfig(function=double),
        FunctionConfig(function="package.module:double"),
    ]
    assert found.cost == {"backbone": FunctionCost(function=quadratic)}
    assert config(cost=TokensCost()).cost == {"backbone": TokensCost()}
    assert found.strategy is quadratic
    assert config(cost={"kind": "package.module:f"}).cost["backbone"] == FunctionCost(function="package.module:f")


def test_replace_merges_sections_and_leaves_the_first_alone():
    first = config(mixture={"unit": "samples"}, mesh={"dp": 4, "tp": 2})
    second = first.replace(mesh={"dp": 2}, mixture={"weights": {"web": 1}}, seed=9)
    assert (second.mesh, second.seed) == ({"dp": 2, "tp": 2}, 9)
    assert (second.mixture.unit, second.mixture.weights) == ("samples", {"web": 1.0})
    assert (first.mesh, first.seed, first.mixture.weights) == ({"dp": 4, "tp": 2}, 17, None)
    with pytest.raises(ConfigError, match="unknown key 'sed'; did you mean 'seed'"):
        first.replace(sed=1)
    with pytest.raises(ConfigError, match="does not divide"):
        first.replace(mesh={"dp": 3})


def test_replace_merges_sources_by_name_and_then_key_by_key():
    tokens = [TokenizeConfig(tokenizer="bytes")]
    first = config(
        sources=WEB
        | {"pq": {"path": "a.parquet", "transforms": tokens, "shuffle": {"window": 3}, "on_error": {"max_rate": 0.5}}}
    )
    changed = first.replace(sources={"pq": {"split": [0, 0.9], "shuffle": {"block_bytes": 9}}, "more": "b.jsonl"})
    assert list(changed.sources) == ["web", "pq", "more"]
    assert changed.sources["web"] == first.sources["web"]
    assert changed.sources["pq"].split == (0.0, 0.9)
    assert (changed.sources["pq"].shuffle.window, changed.sources["pq"].shuffle.block_bytes) == (3, 9)
    assert (changed.sources["pq"].path, changed.sources["pq"].transforms) == ("a.parquet", tokens)
    assert changed.sources["pq"].on_error.max_rate == 0.5
    assert list(first.replace(sources={"web": None}).sources) == ["pq"]
    assert first.replace(sources={"web": "other.jsonl"}).sources["web"].format == "auto"
    with pytest.raises(ConfigError, match=r"sources.pq.splat: unknown key 'splat'; did you mean 'split'"):
        first.replace(sources={"pq": {"splat": [0, 1]}})


def test_rows_from_elsewhere_take_the_place_of_what_said_where_they_came_from():
    changed = config().replace(sources={"web": {"rows": [{"text": "a"}], "split": [0.0, 0.5]}}).sources["web"]
    assert (changed.format, changed.path, changed.split) == ("memory", None, (0.0, 0.5))
    back = Config(sources={"web": changed}).replace(sources={"web": {"path": "c.jsonl"}}).sources["web"]
    assert (back.format, back.rows, back.path, back.split) == ("auto", None, "c.jsonl", (0.0, 0.5))


def test_replaced_weights_are_replaced_as_a_whole_and_packing_is_merged():
    first = config(sources=WEB | {"code": "c"}, mixture={"weights": {"web": 2, "code": 1}})
    assert first.replace(mixture={"weights": {"code": 3}}).weights == {"web": 0.0, "code": 3.0}
    packed = first.replace(batch={"packing": {"lookahead": 5}}).replace(batch={"packing": {"method": "concat"}})
    assert (packed.batch.packing.method, packed.batch.packing.lookahead) == ("concat", 5)


def test_a_dotted_path_alone_is_a_function():
    wanted = [FunctionConfig(function="package.module:double")]
    found = config(sources={"web": {"path": "x", "transforms": ["package.module:double"]}})
    assert found.sources["web"].transforms == wanted
    text = "sources: {web: {path: x, transforms: ['package.module:double']}}"
    assert parsed(text).sources["web"].transforms == wanted


def test_dotted_paths_find_modules_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "msd_beside_the_file.py").write_text("def tf(sample):\n    return sample\n")
    (tmp_path / "msd_raises_on_import.py").write_text("raise ZeroDivisionError('no')\n")
    file = tmp_path / "run.yaml"
    file.write_text("sources: {web: {path: x, transforms: [{kind: 'msd_beside_the_file:tf'}]}}")
    before = list(sys.path)
    load_config(file)
    load_config(file)
    assert sys.path == [*before, str(tmp_path)]
    assert import_dotted("msd_beside_the_file:tf", name="kind")({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match=r"kind: cannot import 'msd_nowhere' .*put its file beside the configuration"):
        import_dotted("msd_nowhere:tf", name="kind")
    with pytest.raises(ConfigError, match="importing 'msd_raises_on_import' raised ZeroDivisionError: no"):
        import_dotted("msd_raises_on_import:tf", name="kind")


def test_sources_alike_may_share_what_they_have_in_common():
    config = parsed(
        """
        sources:
          a: &common {path: a.jsonl, format: jsonl, overflow: drop}
          b: {<<: *common, path: b.jsonl}
        """
    )
    assert (config.sources["b"].overflow, config.sources["a"].overflow) == ("drop", "drop")
    assert config.sources["a"].path != config.sources["b"].path
    with pytest.raises(ConfigError, match="key 'path' stands twice"):
        parsed("sources: {a: &common {path: x}, b: {<<: *common, path: y, path: z}}")


def test_the_value_of_an_override_may_stand_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.yaml").write_text("kind: transformer\nhidden: 96\nlayers: 7\n", encoding="utf-8")
    cost = parsed("sources: {a: b}", "cost.backbone=@model.yaml", "cost.backbone.layers=9").cost["backbone"]
    assert (cost.hidden, cost.layers) == (96, 9)
    with pytest.raises(
        ConfigError, match=r"override 'cost.backbone=@gone.yaml': cannot read 'gone.yaml': No such file"
    ):
        parsed("sources: {a: b}", "cost.backbone=@gone.yaml")
    (tmp_path / "torn.yaml").write_text("{kind: transformer", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a YAML value"):
        parsed("sources: {a: b}", "cost.backbone=@torn.yaml")


def test_one_override_may_stand_alone(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("sources: {web: x}")
    assert load_config(file, overrides="mesh.dp=2").place.size("dp") == 2


def test_a_configuration_shows_itself_in_a_line():
    shown = repr(config(mesh={"dp": 2}))
    assert shown.startswith("Config(sources={'web': 'jsonl'}, mesh={'dp': 2}, num_microbatches=4, batch='64 x 4096 ")
    assert len(shown) < 200


def test_an_unknown_keyword_of_any_section_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"TokenizeConfig: tokeniser: unknown key .*; did you mean 'tokenizer'"):
        TokenizeConfig(tokeniser="bytes")
    with pytest.raises(ConfigError, match="Config: source: unknown key 'source'; did you mean 'sources'"):
        Config(source=WEB)


def test_a_configuration_travels_to_other_processes():
    config = msd.Config(sources={"mine": {"rows": [{"ids": [1]}], "transforms": [{"kind": "tokens"}]}})
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_configuration_is_frozen():
    with pytest.raises(AttributeError):
        config().seed = 3


def test_the_package_exports_the_same_class():
    assert msd.Config is Config
    assert msd.load_config is load_config


def test_a_strategy_is_named_with_its_options_or_given_as_a_function():
    options = {"until": 20, "order": ["web"]}
    found = build_strategy(config(strategy={"function": "curriculum", "options": options}))
    assert (found.func, found.keywords, found.__name__) == (curriculum, options, "curriculum")
    assert build_strategy(config(strategy="curriculum")) is curriculum
    assert build_strategy(config(strategy={"function": quadratic})) is quadratic


def test_a_mesh_may_be_that_of_a_trainer():
    mesh = msd.Mesh.from_megatron(16, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    assert config(mesh=mesh).place == config().replace(mesh=mesh).place == mesh
    assert config(mesh=mesh).mesh == {"pp": 2, "dp": 4, "cp": 1, "tp": 2}


@pytest.mark.parametrize(
    ("held", "change", "replaced", "alone"),
    [
        ({"pp": 2, "dp": 4}, {"tp": 2}, {"pp": 2, "dp": 4, "tp": 2}, {"pp": 1, "dp": 1, "tp": 2}),
        (
            {"pp": 2, "dp": 4, "tp": 2},
            {"dp_replicate": 2, "dp_shard": 4},
            {"pp": 2, "dp_replicate": 2, "dp_shard": 4, "tp": 2},
            {"pp": 1, "dp_replicate": 2, "dp_shard": 4, "tp": 1},
        ),
        ({"dp_replicate": 2, "dp_shard": 2}, {"dp": 8}, {"dp": 8}, {"dp": 8}),
        (
            {"dp_replicate": 2, "dp_shard": 2},
            {"dp_shard": 4},
            {"dp_replicate": 2, "dp_shard": 4},
            {"dp_replicate": 1, "dp_shard": 4},
        ),
    ],
)
def test_a_mesh_is_changed_axis_by_axis_and_dp_stands_for_its_parts(held, change, replaced, alone):
    config = Config(sources={"a": "b"}, mesh=held)
    assert list(config.replace(mesh=change).mesh.items()) == list(replaced.items())
    assert list(config.on_mesh(change).mesh.items()) == list(alone.items())


def test_numbers_of_numpy_are_numbers():
    sizes = {"sequence_length": np.int64(64), "global_batch_size": np.int32(16)}
    found = config(batch=sizes, mesh={"dp": np.int64(4)}, mixture={"weights": {"web": np.float32(0.5)}})
    assert found == config(
        batch={"sequence_length": 64, "global_batch_size": 16}, mesh={"dp": 4}, mixture={"weights": {"web": 0.5}}
    )


def test_an_object_is_no_section():
    with pytest.raises(ConfigError, match=r"mixture: expected 'mapping', got 'types.SimpleNamespace'"):
        config(mixture=SimpleNamespace(unit="samples"))


def test_a_refusal_names_few_of_many_sources():
    sources = {f"s{number:03d}": "path" for number in range(300)}
    with pytest.raises(ConfigError) as caught:
        config(sources=sources, mixture={"weights": {"web": 1}})
    assert "there is no source 'web' (sources: s000, s001, s002, s003, s004, s005, s006, s007 and 292 more); " in str(
        caught.value
    )
