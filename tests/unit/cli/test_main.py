"""Every ending of a command is a status and at most one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import msd
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


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"msd {msd.__version__}\n"


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


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10.0k"), (114_688, "115k"), (999_600, "1.00M"), (1_234_567, "1.23M"),
     (2.5e9, "2.50G"), (3e15, "3000T"), (None, "-")],
)  # fmt: skip
def test_a_short_number_keeps_three_digits(number: float | None, text: str) -> None:
    assert output.short(number) == text


def test_a_table_folds_words_and_never_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.print_table("t", ("source", "rows", "tokens"), [("a_name_that_is_far_too_long", "123,456", "9,876")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert any("123,456" in line and "9,876" in line for line in lines)


def test_piped_output_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert output.stdout().width == 77
    monkeypatch.delenv("COLUMNS")
    assert output.stdout().width == 160
