"""Profiles that nobody measured, for tests and for notebooks without time."""

from typing import Any

from msd.cost.features import BYTES
from msd.cost.linear import LinearModel
from msd.cost.profile import VERSION, Profile, SourceProfile

_MODEL = LinearModel((BYTES,), (1e-6,), 7e-4, (0.0,), (1e6,)).as_dict()


def made_up_source(**changes: Any) -> SourceProfile:
    """Return the profile of a source whose rows take a millisecond, but for what is said otherwise."""
    values: dict[str, Any] = {
        "data": "d",
        "transforms": "t",
        "num_rows": 100,
        "num_failed": 0,
        "rows_per_sample": 1.0,
        "tokens_per_sample": 50.0,
        "prepare_s": 1e-3,
        "cpu_s": 1e-3,
        "read_s": 1e-4,
        "transfer_s": 1e-6,
        "payload_bytes": 200.0,
        "raw_bytes": 300.0,
        "loader_bytes": 1 << 20,
        "worker_bytes": 0,
        "runs_in": "threads",
        "estimator": "nnls",
        "row_model": _MODEL,
        "block_model": _MODEL,
        "mape": 0.1,
        "sum_error": 0.02,
        "calibration": 1.0,
        "repeat_spread": 0.05,
    }
    return SourceProfile(**{**values, **changes})


def made_up_profile(**sources: SourceProfile) -> Profile:
    """Return a profile of some sources, `web` if none is named."""
    return Profile(
        version=VERSION,
        made_at="2026-12-01T00:00:00Z",
        machine={"cpu": "a", "cores": 2},
        versions={"pillow": "12.0"},
        process_bytes=50 << 20,
        sources=sources or {"web": made_up_source()},
    )
