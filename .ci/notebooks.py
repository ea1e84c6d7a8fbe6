"""Run every notebook of a folder from its first cell to its last; fail if one raises or was committed with outputs."""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def main(folder: str) -> int:
    """Run the notebooks of `folder`, each in its own kernel, started in that folder."""
    failed = 0
    paths = sorted(Path(folder).glob("*.ipynb"))
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        if any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells):
            print(f"{path}: committed with outputs; clear them", file=sys.stderr)
            failed += 1
            continue
        started = time.monotonic()
        try:
            NotebookClient(
                notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
            ).execute()
        except CellExecutionError as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed += 1
        else:
            print(f"{path}: ran in {time.monotonic() - started:.1f} s")
    if not paths:
        print(f"{folder}: no notebooks", file=sys.stderr)
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
