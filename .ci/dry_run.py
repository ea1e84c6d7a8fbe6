"""Show that `pip install .` would replace nothing that this environment has: exit status 1 if it would."""

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Ask pip what it would install, and compare with what is installed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", str(report), "."]
        subprocess.run(command, check=True)
        wanted = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = {_normal(entry["metadata"]["name"]): entry["metadata"]["version"] for entry in wanted}
    present = {_normal(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()}
    replaced = sorted(name for name in names if name in present and name != "msd")
    added = sorted(name for name in names if name not in present and name != "msd")
    print(f"pip install . beside {len(present)} packages: adds {len(added)}, replaces {len(replaced)}")
    for name in replaced:
        print(f"  {name} {present[name]} -> {names[name]}", file=sys.stderr)
    return 1 if replaced or "msd" not in names else 0


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    sys.exit(main())
