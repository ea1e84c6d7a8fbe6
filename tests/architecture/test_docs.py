"""What the pages say is so: links lead somewhere, keys and commands exist, code blocks run."""

import inspect
import json
import re
import typing

import msgspec
import pytest
import yaml
from distributed.cli import dask_scheduler, dask_ssh, dask_worker
from doc_names import AROUND, names_of
from doc_pages import NAMES, PAGES, ROOT, blocks, unmarked
from typer.main import get_command

from msd import start
from msd.cli.main import app
from msd.config import CheckpointConfig, Config, PipelineConfig, RuntimeConfig, parse_config
from msd.config.security import PairConfig, SecurityConfig
from msd.coordinator.staff import may_load
from msd.core.dotted import import_dotted
from msd.core.stages import Stages
from msd.cost.config import CostConfig
from msd.loader.config import OnErrorConfig, OnStallConfig, SourceConfig
from msd.loader.transforms.config import TransformConfig, TurnConfig
from msd.planner.config import (
    BalanceConfig,
    BatchConfig,
    BatchStageConfig,
    EncoderConfig,
    LimitsConfig,
    MixtureConfig,
    PackingConfig,
    StageConfig,
)
from msd.planner.config.mixture import FeedbackConfig, GroupConfig
from msd.planner.strategies import BUILT_IN
from msd.runtime.encoding import unpacked
from msd.scaling.config import ScalingConfig
from msd.sources.config import ShuffleConfig

SECTIONS = {
    "Top level": PipelineConfig, "sources": SourceConfig, "shuffle": ShuffleConfig, "on_error": OnErrorConfig,
    "on_stall": OnStallConfig, "mixture": MixtureConfig, "group": GroupConfig,
    "schedule": StageConfig, "feedback": FeedbackConfig, "batch": BatchConfig,
    "batch stages": BatchStageConfig, "packing": PackingConfig, "limits": LimitsConfig, "stages": Stages,
    "balance": BalanceConfig, "encoder": EncoderConfig, "runtime": RuntimeConfig, "checkpoint": CheckpointConfig,
    "scaling": ScalingConfig, "turn": TurnConfig,
}  # fmt: skip
SECTIONS |= {"security": SecurityConfig, "pair": PairConfig}
SECTIONS |= {f"kind: {kind.__struct_config__.tag}": kind for kind in typing.get_args(TransformConfig)}
SECTIONS |= {f"cost kind: {kind.__struct_config__.tag}": kind for kind in typing.get_args(CostConfig)}


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        is_broken = not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place))
        if is_broken:
            broken.append(target)
    assert not broken


def structs_of(kind, found):
    """Return all structs that a value of this type may hold, at any depth."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        found.add(kind)
        for hint in typing.get_type_hints(kind).values():
            structs_of(hint, found)
    for part in typing.get_args(kind):
        structs_of(part, found)
    return found


def test_everything_that_a_configuration_may_hold_has_a_section_on_its_page():
    assert structs_of(PipelineConfig, set()) == set(SECTIONS.values())
    assert documented().keys() >= SECTIONS.keys()


def documented():
    """Section to {key: default as written} of the configuration page."""
    text = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    sections = {}
    for chunk in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = chunk.partition("\n")
        sections[title] = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", body, flags=re.MULTILINE))
    return sections


def default_of(field):
    if field.required:
        return "required"
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return default if isinstance(default, msgspec.Struct) else msgspec.to_builtins(default)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_configuration_page_has_every_key_with_its_default(section):
    written = documented()[section]
    fields = {field.name: default_of(field) for field in msgspec.structs.fields(SECTIONS[section])}
    assert list(written) == list(fields)
    for key, default in fields.items():
        if isinstance(default, msgspec.Struct):
            assert written[key] == f"[below](#{key})"
        elif default == "required":
            assert written[key] == "required"
        elif key == "cost":
            stated = parse_config(f"sources: {{a: b}}\ncost: {written[key].strip('`')}", base=ROOT)
            assert msgspec.to_builtins(stated.cost) == default
        else:
            stated = yaml.safe_load(written[key].strip("`"))
            assert stated == (list(default) if isinstance(default, tuple) else default), key


def test_the_page_of_states_names_every_key_of_a_state():
    rows = [{"text": f"row {number}"} for number in range(200)]
    source = {"rows": rows, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}
    config = Config(
        sources={"table": source}, batch={"sequence_length": 64, "global_batch_size": 2}, mesh={"dp": 1},
        num_microbatches=1, runtime={"kind": "local"},
    )  # fmt: skip
    with start(config) as engine, engine.client(rank=0) as client:
        next(client)
        state = client.state_dict()
    parts = {name: json.loads(unpacked(text)) for name, text in state["packed"].items()}
    keys = {*state, *parts["sources"], *parts["planner"], *(f"sources.{key}" for key in parts["planner"]["sources"])}
    text = (ROOT / "docs/reference/state.md").read_text(encoding="utf-8")
    assert keys - set(re.findall(r"`([\w.]+)`", text)) == set()


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_page_on_strategies_names_each_that_comes_with_msd_and_its_options(name):
    text = (ROOT / "docs/how-to/write-a-strategy.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| [^|]*`{name}`.*$", text, flags=re.MULTILINE)
    options = list(inspect.signature(import_dotted(BUILT_IN[name], name=name)).parameters)[2:]
    assert [option for option in options if f"`{option}`" not in row] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_yaml_block_has_only_keys_that_exist(page):
    for block in unmarked(page, "yaml"):
        found = yaml.safe_load(block.text)
        if "transforms" in found:
            found = {"sources": {"example": {"path": "example.jsonl", **found}}}
        found.setdefault("sources", {"example": {"path": "example.jsonl"}})
        text = re.sub(r"tokenizer: [\w/.]+\.json", "tokenizer: bytes", yaml.safe_dump(found, width=1000))
        parse_config(text, base=ROOT, name=block.name)


def options_of(command):
    """The options of a command, or of all commands of a group."""
    every = [command, *getattr(command, "commands", {}).values()]
    return {name for each in every for option in each.params for name in option.opts}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_shown_exists(page):
    commands = get_command(app).commands
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in blocks(page, "sh"):
        text = block.text.replace("\\\n", " ")
        for shown in re.findall(r"^(?:until )?(?:[^\s#]*/)?(msd|make|python|bash)\s+(.*)$", text, flags=re.MULTILINE):
            program, words = shown[0], shown[1].split("#")[0].split(";")[0].split()
            where = f"{block.name}: {program} {' '.join(words)}"
            if program == "make":
                targets = [word for word in words if "=" not in word]
                assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets), where
            elif program == "msd" and not words[0].startswith("-"):
                assert words[0] in commands, where
                known = options_of(commands[words[0]]) | {"--help", "--debug"}
                assert {word.partition("=")[0] for word in words[1:] if word.startswith("-")} <= known, where
            elif program in ("python", "bash") and not words[0].startswith("-"):
                assert (ROOT / words[0]).is_file(), where


DASK = {"scheduler": dask_scheduler.main, "worker": dask_worker.main, "ssh": dask_ssh.main}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_dask_command_shown_exists(page):
    for block in blocks(page, "sh", "yaml"):
        text = block.text.replace("\\\n", " ").replace("[dask, scheduler", "dask scheduler").replace(",", " ")
        for name, words in re.findall(r"\bdask (\w+)((?:[^\n&\"]|\n {10,}--)*)", text):
            options = set(re.findall(r"(?<!\S)--[\w-]+", words))
            known = {option for each in DASK[name].params for option in (*each.opts, *each.secondary_opts)}
            assert options <= known, f"{block.name}: dask {name} has no {options - known}"


def test_manifests_name_kinds_that_there_are_and_commands_that_exist():
    found = [
        manifest
        for page in (ROOT / "docs/deployment").glob("*.md")
        for block in blocks(page, "yaml")
        for manifest in yaml.safe_load_all(block.text)
    ]
    kinds = {
        "Service": "v1", "Job": "batch/v1", "Deployment": "apps/v1",
        "DaskCluster": "kubernetes.dask.org/v1", "DaskWorkerGroup": "kubernetes.dask.org/v1",
    }  # fmt: skip
    assert len(found) >= 6
    assert all(kinds[one["kind"]] == one["apiVersion"] for one in found)
    (run,) = [one for one in found if one["metadata"]["name"] == "msd-run"]
    (container,) = run["spec"]["template"]["spec"]["containers"]
    program, command, _, *words = [*container["command"], *container["args"]]
    known = options_of(get_command(app).commands[command])
    assert program == "msd"
    assert {word for word in words if word.startswith("-")} <= known
    # What one manifest names, another one makes.
    services = {one["metadata"]["name"]: one for one in found if one["kind"] == "Service"}
    port = int(words[words.index("--listen") + 1].removeprefix(":"))
    assert [each["port"] for each in services["msd"]["spec"]["ports"]] == [port]
    assert services["msd"]["spec"]["selector"].items() <= run["spec"]["template"]["metadata"]["labels"].items()
    (cluster,) = [one for one in found if one["kind"] == "DaskCluster"]
    (group,) = [one for one in found if one["kind"] == "DaskWorkerGroup"]
    assert words[words.index("--scheduler") + 1] == f"tcp://{cluster['metadata']['name']}-scheduler:8786"
    assert group["spec"]["cluster"] == cluster["metadata"]["name"]
    assert not may_load(f"{group['metadata']['name']}-worker-0")
    assert may_load(f"{cluster['metadata']['name']}-default-worker-0")


def test_every_test_named_on_the_page_of_failures_exists():
    text = (ROOT / "docs/explanation/failures.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 30
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / "tests" / path).is_file()
        or not re.search(rf"^def {name}\b", (ROOT / "tests" / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert not missing


def test_each_failure_that_others_reported_is_answered_by_a_test_that_names_it():
    text = (ROOT / "docs/explanation/failures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]{2}-\d+) \|.*\|(.*)\|$", text, flags=re.MULTILINE)
    assert len(rows) > 90
    silent = []
    for key, cell in rows:
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", cell):
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            body = source.partition(f"\ndef {name}(")[2].partition("\ndef ")[0]
            if f"_{key.replace('-', '_')}_" not in name and not re.search(rf"\b{key}\b", body):
                silent.append(f"{path}::{name} does not say {key}")
    assert not silent


def test_the_command_page_has_every_command_with_its_options():
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    chunks = {chunk.partition("\n")[0]: chunk for chunk in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    commands = get_command(app).commands
    assert list(chunks) == [f"msd {name}" for name in commands]
    for name, command in commands.items():
        options = {name for name in options_of(command) if name.startswith("--")}
        written = set(re.findall(r"^\| `(--[\w-]+)", chunks[f"msd {name}"], flags=re.MULTILINE))
        assert written == options - {"--help"}, name


RUNNABLE = [page for page in PAGES if unmarked(page, "python")]


@pytest.mark.parametrize("page", RUNNABLE, ids=[str(page.relative_to(ROOT)) for page in RUNNABLE])
def test_every_python_block_runs_as_written(page, tmp_path, tiny_corpus, monkeypatch):
    """Blocks of a page run one after another, where `docs` and `demo-corpus` are those of the repository."""
    code = "".join(block.text for block in unmarked(page, "python"))
    if "msd.torch" in code or "import torch" in code or str(page.relative_to(ROOT)) in AROUND:
        pytest.importorskip("torch")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "demo-corpus").symlink_to(tiny_corpus)
    monkeypatch.chdir(tmp_path)
    with names_of(page, tiny_corpus, monkeypatch) as names:
        names["__name__"] = "__example__"
        for block in unmarked(page, "python"):
            # Padded with empty lines, so that a traceback names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


def parameters_of(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "config")]


def test_the_python_page_names_every_parameter_of_what_is_called():
    import msd

    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    for name in msd.__all__:
        if inspect.isfunction(function := getattr(msd, name, None) if name != "torch" else None):
            (row,) = re.findall(rf"^\| `msd\.{name}` .*$", text, flags=re.MULTILINE)
            assert [one for one in parameters_of(function) if not re.search(rf"\b{one}\b", row)] == [], name


@pytest.mark.torch
def test_the_python_page_names_every_argument_of_the_loader():
    from msd.torch import DataLoader

    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    missing = [one for one in parameters_of(DataLoader)[1:] if not re.search(rf"\b{one}=", text)]
    assert missing == []


def test_the_python_page_names_every_public_thing_and_every_key_an_engine_tells():
    import msd

    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `msd\.(\w+)`", text, flags=re.MULTILINE)) == set(msd.__all__)
    rows = [{"text": f"row {number}"} for number in range(40)]
    config = msd.Config(
        sources={"table": {"rows": rows, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}},
        batch={"sequence_length": 64, "global_batch_size": 1},
        mesh={"dp": 1},
        num_microbatches=1,
        runtime={"kind": "local"},
    )
    with msd.start(config) as engine:
        next(engine.client(rank=0))
        stats, (document, *_) = engine.stats(), engine.which(0)
    named = set(re.findall(r"`(\w+)`", text))
    assert {*stats, *stats["sources"]["table"], *document} <= named
