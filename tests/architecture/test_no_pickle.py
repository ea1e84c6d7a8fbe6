"""What comes from data, states or profiles is never run: no pickle where they are read, and where there is one, why."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PICKLING = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "torch.storage")
ALLOWED = {
    # Functions of the user's own configuration, between processes that the run itself started.
    "msd/loader/processes/recipe.py": "packs the transforms of a source for the processes of a loader host",
    "msd/loader/processes/child.py": "takes them, from the loader host that started it",
    "msd/profiling/memory.py": "sends a configuration to a process of its own to be measured",
    "msd/runtime/dask/travel.py": "tries beforehand whether functions can be sent, and throws the bytes away",
}
"""Where functions travel by value. `docs/explanation/security.md` says why."""

RUNNING = {"eval", "compile", "__import__"}
UNSAFE = {
    ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("yaml", "load_all"),
    ("np", "load"), ("numpy", "load"), ("pd", "read_pickle"), ("pandas", "read_pickle"), ("torch", "load"),
    ("os", "system"), ("os", "popen"),
}  # fmt: skip


def modules() -> list[Path]:
    return sorted((ROOT / "msd").rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield what is called as (module, name), the module empty for a plain name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            yield owner.id if isinstance(owner, ast.Name) else "", node.func.attr, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield "", node.func.id, node


def pickles(tree: ast.AST) -> bool:
    return any(name == one or name.startswith(f"{one}.") for name in imports(tree) for one in PICKLING)


def faults(tree: ast.AST) -> list[str]:
    """Return what runs, or may run, what it reads."""
    found = []
    for owner, name, call in calls(tree):
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if any(
            key in ("allow_pickle", "shell") and not (isinstance(given, ast.Constant) and given.value is False)
            for key, given in keywords.items()
        ):
            found.append(f"{owner}.{name}(..., allow_pickle or shell)")
        elif owner == "" and name in RUNNING and isinstance(call.func, ast.Name):
            found.append(f"{name}()")
        elif (
            ((owner, name) in UNSAFE and not _is_our_loader(keywords.get("Loader")))
            or name in ("extractall", "unpack_archive")
            or (name == "extract" and owner in ("archive", "tar"))
        ):
            found.append(f"{owner}.{name}()")
    return found


def _is_our_loader(loader: ast.expr | None) -> bool:
    return isinstance(loader, ast.Name) and loader.id == "_OwnLoader"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_nothing_is_run_that_was_read(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert faults(tree) == []
    assert pickles(tree) == (name_of(path) in ALLOWED), "see ALLOWED: a new place needs a reason, an old one goes"


def test_the_loader_of_yaml_makes_plain_values_alone():
    import yaml

    from msd.config.load import _OwnLoader

    assert issubclass(_OwnLoader, yaml.SafeLoader)
    assert set(_OwnLoader.yaml_constructors) == set(yaml.SafeLoader.yaml_constructors)
    with pytest.raises(yaml.YAMLError):
        yaml.load("!!python/object/apply:os.system ['true']", Loader=_OwnLoader)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import cloudpickle as c", "import dill.source",
        "from torch import storage",
    ],
)  # fmt: skip
def test_the_check_sees_imports_that_pickle(text):
    assert pickles(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "yaml.load(text)", "yaml.load(text, Loader=yaml.Loader)", "np.load(path)", "numpy.load(p, allow_pickle=True)",
        "torch.load(path)", "eval(text)", "tar.extractall()", "run(text, shell=True)", "x.f(allow_pickle=flag)",
        "os.system(text)",
    ],
)  # fmt: skip
def test_the_check_sees_calls_that_run_what_they_read(text):
    assert faults(ast.parse(text)) != []


def test_the_check_lets_the_others_be():
    assert (
        faults(ast.parse("yaml.load(text, Loader=_OwnLoader); json.loads(text); re.compile(text); f(shell=False)"))
        == []
    )
    assert not pickles(ast.parse("import json\nfrom msd.core import state"))
