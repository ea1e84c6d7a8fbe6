"""What every engine offers, wherever it runs."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from msd.client import RankClient
from msd.config import PipelineConfig
from msd.core.checks import whole_number
from msd.core.mesh import Mesh
from msd.core.state import StateDict
from msd.errors import ConfigError, DeadlineError


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

    def save(self) -> str:
        """Save where the slowest rank stands to the checkpoint, and return the snapshot's name."""
        ...

    def restore(self, state: StateDict | str, *, force: bool = False) -> None:
        """Move the run and all its ranks to a saved position, or to a snapshot by its name."""
        ...

    def skip(self, source: str, first: int, last: int | None = None, *, at_step: int | None = None) -> int:
        """Pass over rows of a source; return from which step on."""
        ...

    def skip_steps(self, count: int, *, at_step: int | None = None) -> int:
        """Draw and drop what the next steps would hold; return from which step on."""
        ...

    def suspend(self, source: str, *, at_step: int | None = None, reason: str = "") -> int:
        """Draw from a source no longer; return from which step on."""
        ...

    def resume_source(self, source: str, *, at_step: int | None = None) -> int:
        """Draw from a suspended source again; return from which step on."""
        ...

    def report(self, losses: Mapping[str, float], *, at_step: int | None = None) -> int:
        """Say what training sees of the sources, for `mixture.feedback`; return from which step on."""
        ...

    def which(self, step: int, rank: int | None = None) -> list[dict[str, Any]]:
        """Return where each document of a step came from and where it goes, also of one that is planned later.

        Steps of long ago, and those ahead, are planned for the answer, which takes as long as the steps between them
        and the nearest position that is kept; the run itself does not move. What lies ahead is as things stand: edits
        that are still to come may change it.

        Args:
            step: Of this run, from where it began or was last moved to.
            rank: Only what this one holds; None is all.

        Raises:
            ConfigError: If there is no such step or rank, or the step lies before this run.
            DeadlineError: If it takes longer than `runtime.deadline_s`.
        """
        ...

    def close(self) -> None:
        """End the run. Closing twice is fine."""
        ...

    def __enter__(self) -> "Engine": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def shown(engine: Engine, runtime: str, *, is_closed: bool = False) -> str:
    """Return the `repr` of an engine: where it runs, how it is reached, whom it feeds."""
    sizes = ", ".join(f"{axis}={size}" for axis, size in engine.mesh.as_dict().items() if size > 1) or "one rank"
    closed = ", closed" if is_closed else ""
    return f"<{type(engine).__name__} runtime={runtime} address={public(engine.address)} mesh: {sizes}{closed}>"


def public(address: str) -> str:
    """Return an address without its token, which whoever reads a log or a notebook should not have."""
    return address.partition("?")[0]


def step_number(step: Any) -> int:
    """Return the number of a step that a caller gave.

    Raises:
        ConfigError: If it is no integer, or below 0.
    """
    number = whole_number(step, name="step")
    if number < 0:
        raise ConfigError(f"step must be 0 or more, got {number}; steps count from 0")
    return number


def too_late(step: int, deadline_s: float) -> DeadlineError:
    """Return what to raise when a step that somebody asked for was not planned in time."""
    return DeadlineError(
        f"step {step} was not planned within {deadline_s:g} s; ask for one nearer to where the run stands, or use "
        "`msd which` with --state"
    )


def check_supported(config: PipelineConfig) -> None:
    """Raise `ConfigError` for what a configuration may ask for and this release does not have."""
    scaling, workers = config.scaling, config.runtime.workers
    if scaling is not None and not (scaling.min_hosts or 1) <= workers <= (scaling.max_hosts or workers):
        raise ConfigError(
            f"runtime.workers {workers} must lie between scaling.min_hosts {scaling.min_hosts} and scaling.max_hosts "
            f"{scaling.max_hosts}: it is what the run begins with"
        )
