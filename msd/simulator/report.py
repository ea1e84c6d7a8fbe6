"""What a simulation found, as figures, a table, and a picture."""

# M = slots. B = buckets.

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msd.core.arrays import Float64Array
from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.simulator.assign import ASSIGNMENTS
from msd.simulator.picture import rows_svg
from msd.simulator.step_time import Speeds, StepTime
from msd.simulator.trainer import Trainer

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One step under one assignment."""

    step: int
    name: str
    """A key of `msd.simulator.assign.ASSIGNMENTS`."""
    time: StepTime
    even_s: float
    """Seconds if the same work were shared evenly."""
    cost_MB: Float64Array
    """Cost of each row: of both modules, or of the backbone where images are encoded apart."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """Predicted steps of a run, under its plans and under what they are compared with."""

    mesh: Mesh
    num_microbatches: int
    row_tokens: int
    trainer: Trainer
    speeds: Speeds
    costs: Mapping[str, str]
    """The cost function of each module, written out."""
    drawn: Mapping[str, int]
    """Real tokens of each source in the steps."""
    outcomes: tuple[Outcome, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The assignments compared, in the order shown."""
        return tuple(name for name in ASSIGNMENTS if any(one.name == name for one in self.outcomes))

    @property
    def num_steps(self) -> int:
        """Steps planned."""
        return len({one.step for one in self.outcomes})

    @property
    def even_s(self) -> float:
        """Mean seconds of a step if work could be cut at will and shared evenly; see `even_step_s`."""
        return self._mean([one.even_s for one in self._of(self.names[0])])

    def mean(self, name: str, figure: str = "step_s") -> float:
        """Return the mean over the steps of one figure of `StepTime` under an assignment.

        Raises:
            ConfigError: If the assignment was not simulated.
        """
        return self._mean([getattr(one.time, figure) for one in self._of(name)])

    def speedup(self, name: str = "planned", over: str = "dealt") -> float:
        """Return how many times faster a step is under one assignment than under another."""
        return self.mean(over) / self.mean(name)

    def assumptions(self) -> list[str]:
        """Return what the prediction rests on, a line each."""
        trainer, speeds = self.trainer, self.speeds
        encoded = (
            "images by the first stage of their row's ranks"
            if trainer.encoder == "first_stage"
            else "images by every rank, before the pipeline"
        )
        lines = [
            f"mesh {self.mesh}, {self.num_microbatches} microbatches of {self.row_tokens} tokens a rank",
            *(f"cost of {module} for a document of length s: {text}" for module, text in self.costs.items()),
            f"a rank does {speeds.backbone:.4g} of these a second" + self._encoder_speed(encoded),
            f"a backward pass takes {trainer.backward:g} times its forward pass",
            f"ranks of different data meet once a {trainer.sync}",
            f"stages share the backbone as {[round(share, 4) for share in trainer.shares(self.mesh.size('pp'))]}; 1F1B",
            f"{trainer.pass_overhead_s:g} s added to each pass, {trainer.step_overhead_s:g} s to each step",
        ]
        if trainer.encoder == "every_rank":
            lines.append(
                f"an image embedding has {trainer.embedding_bytes:g} bytes, a rank receives "
                f"{trainer.link_bytes_per_s:.3g} bytes/s"
            )
        if trainer.pads:
            lines.append("packed rows are computed whole, padding included")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able values: means over the steps by assignment, and the assumptions."""
        figures = list(StepTime.__dataclass_fields__)
        total = max(1, sum(self.drawn.values()))
        return {
            "num_steps": self.num_steps,
            "num_ranks": self.mesh.world_size,
            "assumptions": self.assumptions(),
            "even_s": self.even_s,
            "assignments": {
                name: {figure: self.mean(name, figure) for figure in figures}
                | {"speedup": self.speedup(name), "over_even": self.mean(name) / self.even_s}
                for name in self.names
            },
            "drawn": {name: tokens / total for name, tokens in self.drawn.items()},
        }

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row for each step and assignment, with the figures of `StepTime` and `even_s`."""
        import pandas as pd

        rows = [
            {"step": one.step, "assignment": one.name, **one.time.as_dict(), "even_s": one.even_s}
            for one in self.outcomes
        ]
        return pd.DataFrame(rows)

    def picture(self, *names: str, step: int | None = None) -> "Picture":
        """Return a picture of one step's rows under some assignments: one bar a data-parallel rank, cut by slots.

        Args:
            names: Assignments; none are `dealt` and `planned`.
            step: Which step; None is the first.

        Raises:
            ConfigError: If an assignment or step was not simulated.
        """
        panels = {}
        for name in names or ("dealt", "planned"):
            found = [one for one in self._of(name) if step is None or one.step == step]
            if not found:
                raise ConfigError(
                    f"step {step} was not simulated; there are steps {self.outcomes[0].step} and following"
                )
            panels[name] = found[0].cost_MB
        return Picture(rows_svg(panels))

    def _repr_svg_(self) -> str:
        return self.picture()._repr_svg_()

    def __str__(self) -> str:
        head = f"{'assignment':14}{'step s':>10}{'x dealt':>9}{'x even':>8}{'bubble':>8}{'idle':>7}{'row max/mean':>14}"
        lines = [
            f"{name:14}{self.mean(name):10.4g}{self.speedup(name):9.2f}{self.mean(name) / self.even_s:8.3f}"
            f"{self.mean(name, 'bubble'):8.1%}{self.mean(name, 'idle'):7.1%}{self.mean(name, 'row_ratio'):14.2f}"
            for name in self.names
        ]
        return "\n".join([f"{self.num_steps} steps on {self.mesh.world_size} ranks", head, *lines])

    def _encoder_speed(self, encoded: str) -> str:
        if "encoder" not in self.costs:
            return ""
        return f", {self.speeds.encoder:.4g} in the encoder; {encoded}"

    def _of(self, name: str) -> list[Outcome]:
        found = [one for one in self.outcomes if one.name == name]
        if not found:
            raise ConfigError(f"there is no assignment {name!r} in this simulation; there are {', '.join(self.names)}")
        return found

    @staticmethod
    def _mean(values: list[float]) -> float:
        return math.fsum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that notebooks show; `svg` is its text."""

    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg
