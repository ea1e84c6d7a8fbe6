"""Tests here start programs as those of the Dask engine do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "integration/dask"))
