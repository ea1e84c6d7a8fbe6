"""What every engine offers, wherever it runs."""

from types import TracebackType
from typing import Any, Protocol

from msd.client import RankClient
from msd.config import PipelineConfig
from msd.core.mesh import Mesh
from msd.errors import ConfigError


class Engine(Protocol):
    """A run: started by `msd.start`, used as a context manager."""

    @property
    def address(self) -> str:
        """What `msd.connect` takes."""
        ...

    @property
    def dashboard_link(self) -> str | None:
        """Address of the page that shows the run, if there is one."""
        ...

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh."""
        ...

    def client(self, rank: int) -> RankClient:
        """Return a client for one rank of the mesh."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far: JSON-able."""
        ...

    def which(self, step: int) -> list[dict[str, Any]]:
        """Return where each document of a step came from and where it went."""
        ...

    def close(self) -> None:
        """End the run. Closing twice is fine."""
        ...

    def __enter__(self) -> "Engine": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_supported(config: PipelineConfig) -> None:
    """Raise `ConfigError` for what a configuration may ask for and this release does not have."""
    if config.checkpoint is not None:
        raise ConfigError(
            "checkpoint is not written by this release; set checkpoint: null and keep client.state_dict() with your "
            "model's checkpoint"
        )
    if config.shadows:
        raise ConfigError("shadows are not started by this release; set shadows: 0")
