"""What sources cost on one machine, as a file that says of what and where it was made."""

from collections.abc import Mapping
from typing import Any

import msgspec

from msd.core.demand import RowCost, RunsIn
from msd.cost.linear import LinearModel
from msd.cost.models import RowModel, model_from
from msd.errors import ConfigError

VERSION = 1


class Outlier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that took far more than others like it."""

    ordinal: int
    seconds: float
    predicted: float
    """Seconds, by the model."""


class SourceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one source."""

    data: str
    """Fingerprint of its data."""
    transforms: str
    """Fingerprint of what is done to its rows."""
    num_rows: int
    """Sampled over the whole source."""
    num_failed: int
    """Of those, rows that failed; they take part in the mean."""
    rows_per_sample: float
    tokens_per_sample: float
    prepare_s: float
    """Mean seconds of a worker a row: read and transformed, undisturbed."""
    cpu_s: float
    read_s: float
    """Part of `prepare_s`."""
    transfer_s: float
    payload_bytes: float
    """Of a row's samples."""
    raw_bytes: float
    """Of a row as it was read."""
    loader_bytes: int
    worker_bytes: int
    runs_in: RunsIn
    estimator: str
    """That was chosen for `row_model`."""
    row_model: dict[str, Any]
    """Seconds from what is known of a row before it is transformed; `msd.cost.models.model_from`."""
    block_model: dict[str, Any]
    """Linear in bytes alone, which the index knows of rows that nobody has read."""
    mape: float
    sum_error: float
    calibration: float
    """Of `row_model` on held-out rows; see `msd.cost.scores`."""
    repeat_spread: float
    """Median over rows of (largest - smallest) / median of two timings of it: how far single ones differ."""
    outliers: list[Outlier] = []
    notes: list[str] = []
    """What a reader should know: too few rows, a deadline that was met, ..."""

    @property
    def cost(self) -> RowCost:
        """The means."""
        return RowCost(
            prepare_s=self.prepare_s, cpu_s=self.cpu_s, transfer_s=self.transfer_s, payload_bytes=self.payload_bytes
        )

    @property
    def of_rows(self) -> RowModel:
        """The model from what is known of a row."""
        return model_from(self.row_model)

    @property
    def of_blocks(self) -> LinearModel:
        """The model from bytes alone."""
        found = model_from(self.block_model)
        if not isinstance(found, LinearModel) or len(found.coefficients) != 1:
            raise ConfigError("this profile has no linear model of bytes; profile again")
        return found


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all sources of a configuration."""

    version: int
    made_at: str
    """Date and time, UTC, ISO 8601."""
    machine: dict[str, str | int | float]
    """`cpu` and `cores`."""
    versions: dict[str, str]
    """Of the libraries that read and transform."""
    process_bytes: int
    """Memory of a loader host before it holds any loader; 0 if it could not be measured."""
    sources: dict[str, SourceProfile]

    def to_json(self) -> bytes:
        """Return it as a file holds it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, content: bytes, *, name: str = "profile") -> "Profile":
        """Return what `to_json` said.

        Raises:
            ConfigError: If it is none, or of another release.
        """
        try:
            version = msgspec.json.decode(content).get("version")
            if version != VERSION:
                raise ConfigError(
                    f"{name} is a profile of version {version}, not {VERSION}; make it with `msd profile`"
                )
            return msgspec.json.decode(content, type=cls)
        except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{name} is no profile: {error}; make it with `msd profile`") from None

    def differences(
        self,
        fingerprints: Mapping[str, tuple[str, str]],
        machine: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> list[str]:
        """Return what speaks against using it, each in a few words; nothing if it fits.

        Args:
            fingerprints: By source of the configuration, of its data and of its transforms.
            machine: Where the run is to be.
            versions: Of the libraries there.
        """
        found = []
        for source, (data, transforms) in fingerprints.items():
            profiled = self.sources.get(source)
            if profiled is None:
                found.append(f"it has no source {source!r}")
                continue
            what = [
                name
                for name, here, there in (
                    ("data", data, profiled.data),
                    ("transforms", transforms, profiled.transforms),
                )
                if here != there
            ]
            if what:
                found.append(f"{' and '.join(what)} of source {source!r} are others")
        for key, here in machine.items():
            if self.machine.get(key) != here:
                found.append(f"it was made on {key} {self.machine.get(key)}, this is {here}")
        for name, here in versions.items():
            if self.versions.get(name) != here:
                found.append(f"it was made with {name} {self.versions.get(name)}, this is {here}")
        return found
