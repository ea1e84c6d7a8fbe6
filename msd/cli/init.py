"""`msd init PATH...`: look at data and write a ready configuration for it."""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.options import Json

if TYPE_CHECKING:
    from msd.look import Look


def init(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs or URLs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="File to write; - prints it.")] = Path("msd.yaml"),
    tokenizer: Annotated[
        str | None,
        typer.Option(help="A tokenizer.json, or bytes; otherwise one in or above the paths.", show_default=False),
    ] = None,
    seq: Annotated[int, typer.Option("--seq", min=2, help="Tokens of a training sequence.")] = 2048,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Look at data, write a ready configuration with comments, and say what was seen and why it was read so."""
    from msd.config import parse_config
    from msd.core.checks import working_directory
    from msd.errors import InputError
    from msd.look import look, render_yaml
    from msd.look.groups import check_exists

    for path in paths:
        check_exists(path)
    is_printed = str(out) == "-"
    if not is_printed and out.exists() and not force:
        raise InputError(f"{str(out)!r} exists; name another file with --out, or replace it with --force")
    seen = look(paths, tokenizer)
    base = working_directory() if is_printed else out.resolve().parent
    text = render_yaml(seen, base=base, sequence_length=seq)
    parse_config(text, base=base, name=str(out))
    if is_printed:
        sys.stdout.write(text)
        return
    _write_whole(out, text)
    if as_json:
        output.print_json(_described(seen) | {"config": str(out)})
        return
    _print_seen(seen)
    output.stdout().print(f"wrote {out}; next: msd validate {out}", markup=False, soft_wrap=True)


def _print_seen(seen: "Look") -> None:
    from msd.look import assumptions

    rows = [
        (finding.name, finding.format, "; ".join(finding.reasons), finding.num_files, output.size(finding.nbytes))
        for finding in seen.findings
    ]
    output.print_table("what was seen", ("source", "format", "why", "files", "stored"), rows, text_columns=3)
    output.note(f"tokenizer {seen.tokenizer}: {seen.tokenizer_reason}")
    for assumed in assumptions(seen):
        if not assumed.startswith("tokenizer "):
            output.note(assumed)


def _described(seen: "Look") -> dict[str, Any]:
    return {
        "tokenizer": seen.tokenizer,
        "tokenizer_reason": seen.tokenizer_reason,
        "left_out": list(seen.left_out),
        "sources": {
            finding.name: {
                "format": finding.format,
                "path": list(finding.path),
                "files": finding.num_files,
                "stored_bytes": finding.nbytes,
                "fields": {field.name: str(field) for field in finding.fields},
                "transforms": list(finding.transforms),
                "reasons": list(finding.reasons),
                "warnings": list(finding.warnings),
                "max_rate": finding.max_rate,
            }
            for finding in seen.findings
        },
    }


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # A temporary file is private; a configuration is as readable as the user's other new files.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
