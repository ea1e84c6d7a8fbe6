"""The public surface is the list that says so."""

import ast
import importlib
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

import msd

NEEDS_TORCH = {"torch"}


def test_all_names_every_public_thing_and_each_can_be_had():
    tree = ast.parse(Path(msd.__file__).read_text(encoding="utf-8"))
    bound = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
    public = {name for name in bound | set(msd._LAZY) if not name.startswith("_")}
    assert public - {"Any", "TYPE_CHECKING", "Iterator", "Mapping"} == set(msd.__all__)
    assert msd.__all__ == sorted(msd.__all__)


@pytest.mark.parametrize("name", sorted(set(msd.__all__) - NEEDS_TORCH))
def test_a_public_name_is_there_and_says_what_it_is(name):
    assert getattr(msd, name).__doc__


@pytest.mark.parametrize("name", ["layouts", "torch"])
def test_a_public_module_can_be_imported_from(name):
    if name in NEEDS_TORCH:
        pytest.importorskip("torch")
    public, own = importlib.import_module(f"msd.{name}"), importlib.import_module(f"msd.client.{name}")
    assert public is getattr(msd, name)
    assert public.__all__ == own.__all__
    assert all(getattr(public, each) is getattr(own, each) for each in own.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'msd' has no attribute 'strat'"):
        msd.strat  # noqa: B018


def tracked(repository, *patterns):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=repository, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [repository / name for name in listed.stdout.split("\0") if name]


def test_committed_text_names_no_path_of_one_machine(repository):
    found = []
    private = re.compile("/" + r"(?:home|root|work|Users)/\w|/" + r"tmp/\w")
    for path in tracked(repository, "*.py", "*.md", "*.yaml", "*.toml", "*.ipynb", "Makefile", ".ci/*", "LICENSE"):
        if path.is_file():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if private.search(line):
                    found.append(f"{path.relative_to(repository)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_no_module_pickles_but_where_a_function_travels_by_value(repository):
    found = set()
    for path in tracked(repository, "msd/*.py"):
        if path.is_file():
            with path.open("rb") as file:
                names = {token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME}
            if names & {"pickle", "dill", "shelve", "marshal"}:
                found.add(path.name)
    assert found == set()


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(msd) == msd.__all__
