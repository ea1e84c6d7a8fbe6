"""Imports go down the stairs, and `import msd` stays light."""

import subprocess
import sys

import pytest

HEAVY = ("dask", "distributed", "torch", "sklearn", "pandas", "fastparquet", "datasets", "tokenizers", "PIL", "typer")


def test_every_import_points_down_the_floors(repository):
    # In a process of its own: it sets up logging, and every logger that there is already falls silent.
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    run = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def loaded_after(statement):
    program = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize("module", ["msd", "msd.planner.planner", "msd.planner.explain", "msd.constructor.constructor"])
def test_importing_what_decides_loads_nothing_heavy(module):
    assert loaded_after(f"import {module}") == []


def test_the_local_engine_loads_neither_dask_nor_torch_nor_scikit_learn():
    assert set(loaded_after("import msd.runtime.local")).isdisjoint({"dask", "distributed", "torch", "sklearn"})


def test_the_check_of_loaded_modules_sees_what_is_loaded():
    assert loaded_after("import PIL.Image") == ["PIL"]
