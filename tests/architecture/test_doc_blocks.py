"""Every block of every page is run, here or by the test that its mark names, or says what CI lacks for it."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import NAMES, NEEDS, PAGES, ROOT, Block, blocks, unmarked

import msd

COMMANDS = r"(?:msd|make|python|pip|dask|torchrun|kubectl|helm|sbatch|srun) +\S"
RUN = {"python", "yaml", "sh"}
"""Languages that tests run: Python as it stands, YAML as a configuration, and commands below."""


def unanswered(page: Path) -> list[str]:
    """Return what is neither run by a test nor marked with what CI lacks."""
    text = page.read_text(encoding="utf-8")
    found = [f"{block.name}: {fault}" for block in blocks(page) if (fault := fault_of(block)) is not None]
    if re.search(r"^[ \t]+```", text, flags=re.MULTILINE):
        found.append("a block is indented: tests find those at the margin")
    if re.search(r"^(?: {4}|\t)" + COMMANDS, text, flags=re.MULTILINE):
        found.append("a command is indented: write a block of sh")
    if len(re.findall(r"^```", text, flags=re.MULTILINE)) != 2 * len(list(blocks(page))):
        found.append("a fence is no block: it lacks its end, or says more than a language")
    return found


def fault_of(block: Block) -> str | None:
    if block.mark == "needs":
        return None if block.what in NEEDS else f"{block.what} is not known to be lacking; see NEEDS"
    if block.mark == "run by":
        missing = not_run_by(block)
        return f"{block.what} does not name {', '.join(sorted(missing))}" if missing else None
    if block.mark is not None:
        return f"a mark is 'needs' or 'run by', not {block.mark!r}"
    if block.language in ("", "text"):
        return "it is a command: write sh" if re.search("^" + COMMANDS, block.text, flags=re.MULTILINE) else None
    return None if block.language in RUN else f"nothing runs {block.language}; mark what it needs"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_is_run_or_says_what_ci_lacks(page):
    assert unanswered(page) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```toml\na = 1\n```\n", "line 2: nothing runs toml; mark what it needs"),
        ("```\nmsd plan x.yaml\n```\n", "line 2: it is a command: write sh"),
        ("<!-- needs: patience -->\n```sh\nmake all\n```\n", "line 3: patience is not known to be lacking; see NEEDS"),
        ("<!-- run by: Makefile -->\n```sh\nmsd fly\n```\n", "line 3: Makefile does not name msd fly"),
        (
            "<!-- run by: tests/faults/test_served_again.py -->\n```sh\nmsd serve --fast\n```\n",
            "line 3: tests/faults/test_served_again.py does not name --fast",
        ),
        ("<!-- skip: it -->\n```sh\nmsd plan\n```\n", "line 3: a mark is 'needs' or 'run by', not 'skip'"),
        ("- so:\n  ```sh\n  msd plan\n  ```\n", "a block is indented: tests find those at the margin"),
        ("    msd plan x.yaml\n", "a command is indented: write a block of sh"),
        ("```{code} sh\nmsd plan x.yaml\n```\n", "a fence is no block: it lacks its end, or says more than a language"),
    ],
)
def test_a_block_that_nothing_runs_is_named(tmp_path, text, fault):
    page = tmp_path / "page.md"
    page.write_text(text)
    (told,) = unanswered(page)
    assert told.removeprefix("page.md ") == fault


def commands_of(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def not_run_by(block: Block) -> set[str]:
    """Return programs and options of a block that what runs it does not name."""
    source = (ROOT / block.what).read_text(encoding="utf-8")
    if not block.what.endswith(".py"):
        return {shlex.join(words) for words in commands_of(block) if " ".join(words) not in source}
    wanted = set()
    for words in commands_of(block):
        wanted |= {Path(word).name for word in words if word.endswith(".py") and word != block.what}
        wanted |= {word.partition("=")[0] for word in words if word.startswith("--")} - {"--standalone"}
        if words[0] == "msd":
            wanted.add(f'"{words[1]}"')
    return {word for word in wanted if word not in source}


PRELUDE = r"""
set -euo pipefail
server=
python() { "$PYTHON" "$@"; }
torchrun() { "$PYTHON" -m torch.distributed.run "$@"; }
msd() {
  case "$1 $*" in
    corpus\ *) cp -r "$CORPUS" "$2" ;;
    profile\ *--training*) "$PYTHON" -m msd.cli.main "$@" ;;
    profile\ *) "$PYTHON" -m msd.cli.main "$@" --seconds 2 ;;
    serve\ *--dask-config*) "$PYTHON" -m msd.cli.main "$@" ;;
    serve\ *) end_server; serve "$@" ;;
    *) "$PYTHON" -m msd.cli.main "$@" ;;
  esac
}
serve() {  # In another terminal: it goes on until the page serves something else, or ends.
  "$PYTHON" -m msd.cli.main "$@" > served.txt &
  server=$!
  until [ -s served.txt ]; do kill -0 $server; sleep 0.1; done
}
end_server() {
  if [ -n "$server" ]; then kill $server; wait $server; server=; fi
}
"""


def of_resume(folder: Path) -> None:
    """A checkpoint of 450 short steps, and the configuration that wrote it."""
    rows = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(3000))
    (folder / "rows.jsonl").write_text(rows)
    settings = {
        "sources": {
            "web": {"path": "rows.jsonl", "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]},
        },
        "batch": {"sequence_length": 32, "global_batch_size": 1},
        "mesh": {"dp": 1},
        "num_microbatches": 1,
        "runtime": {"kind": "local"},
        "checkpoint": {"path": "ckpt", "every": 100, "keep": 3},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    with msd.start(msd.load_config(folder / "config.yaml")) as engine, engine.client(rank=0) as client:
        for batch in client:
            if batch.step == 450:
                break


def of_strategies(folder: Path) -> None:
    """A configuration with a source `web`."""
    text = (folder / "demo-corpus/corpus.yaml").read_text()
    text = re.sub(r"(path|tokenizer): (\w)", r"\1: demo-corpus/\2", text)
    (folder / "run.yaml").write_text(re.sub(r"\bcode:", "web:", text))


def of_sizes(folder: Path) -> None:
    """Timed microbatches."""
    lines = [f"{length} {length // 2},{1e-6 * length + 1e-10 * length**2}" for length in range(100, 4000, 130)]
    (folder / "timed.csv").write_text("\n".join(["lengths,seconds", *lines]) + "\n")


PREPARED = {
    "docs/how-to/resume.md": of_resume,
    "docs/how-to/write-a-strategy.md": of_strategies,
    "docs/how-to/size-loaders.md": of_sizes,
}
"""What the reader of a page has already."""

SHOWN = [page for page in PAGES if unmarked(page, "sh")]


@pytest.fixture(scope="module")
def corpus(tiny_corpus, tmp_path_factory):
    """What `msd corpus demo-corpus` makes, with fewer rows and shorter steps: pages show what takes minutes."""
    made = tmp_path_factory.mktemp("made") / "demo-corpus"
    shutil.copytree(tiny_corpus, made)
    text = (made / "corpus.yaml").read_text()
    for before, after in (("sequence_length: 1024", "sequence_length: 256"), ("batch_size: 16", "batch_size: 8")):
        assert before in text
        text = text.replace(before, after)
    (made / "corpus.yaml").write_text(text)
    return made


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(150)
@pytest.mark.parametrize("page", SHOWN, ids=[str(page.relative_to(ROOT)) for page in SHOWN])
def test_every_command_runs_as_written(page, tmp_path, corpus):
    """Commands of a page run one after another in one folder, over a smaller corpus; what serves goes on meanwhile."""
    shown = unmarked(page, "sh")
    if any("docs/examples" in block.text for block in shown):
        pytest.importorskip("torch")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    if not any("msd corpus demo-corpus" in block.text for block in shown):
        (tmp_path / "demo-corpus").symlink_to(corpus)
    PREPARED.get(str(page.relative_to(ROOT)), lambda folder: None)(tmp_path)
    script = PRELUDE + "".join(f"\n# line {block.line}\n{block.text}" for block in shown) + "\nend_server\n"
    (tmp_path / "page.sh").write_text(script)
    done, output = run(tmp_path, corpus, limit_s=120)
    assert done == 0, f"{page.relative_to(ROOT)}:\n{output[-6000:]}"


def run(folder: Path, corpus: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a page; return its status, None if it was stopped, and all that was written. Nothing of it is left."""
    environment = {
        **os.environ, "PYTHON": sys.executable, "CORPUS": str(corpus), "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore", "COLUMNS": "120",
    }  # fmt: skip
    with (folder / "output.txt").open("wb") as output:
        program = subprocess.Popen(
            ["bash", "-x", "page.sh"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            status = program.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
    return status, (folder / "output.txt").read_text(errors="replace")
