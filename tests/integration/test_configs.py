"""The configurations of large runs: the sources they state, and a plan for every pair of models."""

import subprocess
import sys
from itertools import product

import pytest

import msd
from msd.build import build_loaders, build_orders, build_planner, index_all, plan_steps

DATA = {"coyo700m": 5, "navit_data": 306}
BACKBONES = ("llama_12b", "tmoe_25b", "mixtral_8x7b")
ENCODERS = ("vit_1b", "vit_2b")
READ = ("smoke", "text_mix", "multimodal", "code_concat", "long_context", "evaluation", "curriculum")
"""Configurations over the demo corpus."""


def loaded(repository, data, *overrides):
    return msd.load_config(repository / "configs" / f"{data}.yaml", overrides=overrides)


@pytest.fixture(scope="module", params=DATA)
def data(request, repository, tmp_path_factory):
    """A data set, indexed once, with its loaders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        config = loaded(repository, request.param)
        orders = build_orders(config, index_all(config))
    loaders = build_loaders(config, orders)
    yield request.param, orders, loaders
    for loader in loaders.values():
        loader.close()


@pytest.mark.parametrize(("backbone", "encoder"), list(product(BACKBONES, ENCODERS)))
def test_every_pair_of_models_is_planned(data, repository, monkeypatch, backbone, encoder):
    name, orders, loaders = data
    monkeypatch.chdir(repository)
    models = (f"cost.backbone=@configs/models/{backbone}.yaml", f"cost.encoder=@configs/models/{encoder}.yaml")
    small = ("mesh={pp: 2, dp: 4}", "num_microbatches=4", "batch.global_batch_size=16", "broadcast=[]")
    config = loaded(repository, name, *models, *small)
    (plan,) = plan_steps(build_planner(config, orders), loaders, steps=1)
    assert plan.report.fill > 0.97
    assert plan.report.lockstep < plan.report.packed_lockstep
    assert all(cost_B.min() > 0 for cost_B in plan.report.cost_B.values())


def test_the_sources_are_those_of_the_paper(data):
    name, orders, _ = data
    assert len(orders) == DATA[name]


def test_models_have_the_parameters_that_their_names_say(repository, monkeypatch):
    monkeypatch.chdir(repository)
    experts = {"tmoe_25b": 16, "mixtral_8x7b": 8}
    said = {"llama_12b": 12e9, "tmoe_25b": 25e9, "mixtral_8x7b": 46.7e9, "vit_1b": 1e9, "vit_2b": 1.8e9}
    for name, number in said.items():
        cost = loaded(repository, "coyo700m", f"cost.encoder=@configs/models/{name}.yaml").cost["encoder"]
        attention = 2 * cost.hidden**2 * (1 + (cost.kv_heads or cost.heads) / cost.heads)
        mlp = (3 if cost.gated else 2) * cost.hidden * cost.ffn * experts.get(name, 1)
        counted = cost.layers * (attention + mlp) + 2 * cost.vocab * cost.hidden
        assert counted == pytest.approx(number, rel=0.03), name


def small(path, tiny_corpus, folder):
    """Return a configuration over the small corpus."""
    text = path.read_text(encoding="utf-8").replace("../demo-corpus", str(tiny_corpus))
    (folder / path.name).write_text(text)
    return msd.load_config(folder / path.name)


@pytest.mark.parametrize("name", READ)
def test_every_rank_receives_the_first_step_of_what_reads_the_demo_corpus(repository, tiny_corpus, tmp_path, name):
    config = small(repository / "configs" / f"{name}.yaml", tiny_corpus, tmp_path)
    with msd.start(config, runtime="local") as engine:
        batches = [next(engine.client(rank)) for rank in range(engine.mesh.world_size)]
    held = {(source, ordinal) for batch in batches for source, ordinal, _ in getattr(batch, "sample_ids", [])}
    assert held
    assert {source for source, _ in held} <= set(config.sources)


def test_the_page_says_what_each_configuration_shows_and_each_is_run_here(repository):
    folder = repository / "configs"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".yaml", ".py")}
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert [name for name in files if "/" not in name and f"[{name}]({name})" not in page] == []
    assert {name for name in files if name.endswith(".yaml")} == {
        *(f"{name}.yaml" for name in (*READ, *DATA)),
        *(f"models/{name}.yaml" for name in (*BACKBONES, *ENCODERS)),
    }


def test_the_306_sources_are_what_their_script_writes(repository):
    script = repository / "configs" / "navit_data.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert made == (repository / "configs" / "navit_data.yaml").read_text(encoding="utf-8")
