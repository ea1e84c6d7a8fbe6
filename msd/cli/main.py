"""`msd COMMAND`: finds the command, runs it, and turns every ending into a status and at most one line.

Statuses: 0 fine, 1 failed, 2 misused (a wrong option, configuration, path or file), 130 interrupted, 141 nobody reads.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from msd.cli import (
    corpus,
    demo,
    doctor,
    index,
    init,
    mix,
    partition,
    plan,
    preview,
    profile,
    serve,
    state,
    top,
    validate,
    which,
)
from msd.cli import run as run_batch

INTERRUPTED = 130
NOBODY_READS = 141

app = typer.Typer(
    name="msd",
    help="Feed the training of language and vision-language models from hundreds of sources.",
    epilog="Start with: msd demo · your own data: msd init PATH, then msd plan config.yaml --steps 20",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        from msd import __version__

        print(f"msd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    # `run` takes --debug out wherever it stands; it is declared here so that --help shows it.
    del debug, version


_COMMANDS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("demo", demo.demo),
    ("corpus", corpus.corpus),
    ("init", init.init),
    ("validate", validate.validate),
    ("index", index.index),
    ("profile", profile.profile),
    ("partition", partition.partition),
    ("plan", plan.plan),
    ("preview", preview.preview),
    ("serve", serve.serve),
    ("run", run_batch.run),
    ("which", which.which),
    ("doctor", doctor.doctor),
    ("top", top.top),
)
for _name, _command in _COMMANDS:
    app.command(_name)(_command)
app.add_typer(state.app, name="state")
app.add_typer(mix.app, name="mix")


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; errors become one line on standard error."""
    kept, debug = _without_debug(arguments)
    try:
        outcome = app(args=kept, prog_name="msd", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        # Where an interrupt met code that Python itself executes (as for each dataclass of an import), Python would end
        # by a signal whoever caught it, and not with our status: it forgets so when it executes something else.
        exec("")
        return _end(INTERRUPTED, "interrupted")
    except RuntimeError as error:
        # So an interrupt comes out of the making of a class, up to Python 3.11.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _end(INTERRUPTED, "interrupted")
        if debug:
            raise
        return _end(*_explained(error, kept))
    except BrokenPipeError:
        _stop_writing()
        return NOBODY_READS
    except Exception as error:
        if debug:
            raise
        return _end(*_explained(error, kept))


def _explained(error: Exception, arguments: Sequence[str]) -> tuple[int, str]:
    """Return the status and the one line of an error."""
    from msd.errors import MsdError

    if isinstance(error, MsdError):
        return error.exit_status, str(error)
    message = getattr(error, "format_message", None)
    if message is not None:
        # What Click says of a wrong command line; Typer may carry a Click of its own, so its class is not named.
        command = next((name for name in (*(name for name, _ in _COMMANDS), "state", "mix") if name in arguments), "")
        return 2, f"{str(message()).rstrip('.')}; see `{' '.join(['msd', command]).strip()} --help`"
    if isinstance(error, OSError):
        where = f" {error.filename!r}" if error.filename else ""
        return 1, f"{error.strerror or error}{where}"
    return 1, f"unexpected {type(error).__name__}: {error}; run it again with --debug and report the traceback"


def _end(status: int, message: str) -> int:
    line = " ".join(message.split())
    print(f"error: {line}" if status != INTERRUPTED else line, file=sys.stderr)
    return status


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    kept = [argument for argument in arguments if argument != "--debug"]
    return kept, len(kept) < len(arguments)


def _stop_writing() -> None:
    # Otherwise the interpreter reports the same broken pipe once more when it flushes at exit.
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    main()
