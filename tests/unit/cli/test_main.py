"""Every ending of a command is a status and at most one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msd.cli import main, output
from msd.errors import ConfigError, EngineError, MsdError


def failing(error: BaseException) -> Any:
    def command(*arguments: object, **options: object) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["corpus"], "DIR"),
        (["nonsense"], "nonsense"),
        (["plan", "--nonsense"], "--nonsense"),
        (["plan", "x.yaml", "--steps", "many"], "--steps"),
        (["plan", "x.yaml", "--steps", "0"], "--steps"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert says in err
    assert "--help`" in err


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (ConfigError("web: no\nsuch key"), 2, "error: web: no such key"),
        (EngineError("over"), 1, "error: over"),
        (MsdError("bad"), 1, "error: bad"),
        (FileNotFoundError(2, "No such file", "x.txt"), 1, "error: No such file 'x.txt'"),
        (ZeroDivisionError("division"), 1, "error: unexpected ZeroDivisionError: division"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_with_its_status(
    error: BaseException, status: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "app", failing(error))
    assert main.run(["plan", "x.yaml"]) == status
    err = capsys.readouterr().err
    assert err.startswith(says)
    assert err.count("\n") == 1


def test_debug_anywhere_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "app", failing(ConfigError("no")))
    with pytest.raises(ConfigError):
        main.run(["plan", "x.yaml", "--debug"])


def test_a_reader_that_left_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main, "_stop_writing", lambda: None)
    monkeypatch.setattr(main, "app", failing(BrokenPipeError()))
    assert main.run(["plan", "x.yaml"]) == 141
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["demo", "corpus", "init", "validate", "index", "plan", "preview"])
def test_every_command_explains_itself_and_has_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from msd.cli import main; main.run(['--help'])\n"
        "heavy = {'pyarrow', 'pandas', 'sklearn', 'torch', 'dask', 'PIL', 'tokenizers', 'fsspec'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_json_of_corpus_is_alone_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["corpus", str(tmp_path / "demo"), "--scale", "0.02", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [source["name"] for source in told["sources"]] == ["code", "docstrings", "docs", "descriptions", "photos"]
    assert Path(told["config"]).is_file()


def test_a_table_names_its_columns_and_keeps_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("t", ("source", "rows"), [("[red]web", 3)])
    shown = capsys.readouterr().out
    assert "[red]web" in shown
    assert "source" in shown


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_have_binary_units(nbytes: int, text: str) -> None:
    assert output.size(nbytes) == text
