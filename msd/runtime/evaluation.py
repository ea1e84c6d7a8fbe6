"""Rows that training never sees, the same ones every time: read in the process of the rank that evaluates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msd.client import RankClient
from msd.client.target import rank_of
from msd.config import PipelineConfig
from msd.core.batch import RankBatch
from msd.core.checks import few, whole_number
from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.runtime.local import LocalEngine

_WHOLE = (0.0, 1.0)


class Evaluation(RankClient):
    """The held-out rows of a configuration for one rank: iterating again begins again, with the same batches.

    It reads by itself, in this process, whatever run trains: progress, resumes and live edits of that run change
    nothing here. Every rank of the mesh gets its share, all of them the same number of steps. Use it as a context
    manager, or call `close()`.
    """

    def __init__(self, config: PipelineConfig, *, rank: int | None, steps: int | None) -> None:
        """See `msd.evaluation`; `config` is the one that evaluates."""
        self.config = config
        self._steps = steps
        self._engine = LocalEngine(config)
        try:
            super().__init__(self._engine, rank=rank_of(self._engine) if rank is None else rank)
        except BaseException:
            self._engine.close()
            raise
        self._beginning = self.state_dict()
        self._num_taken = 0

    def __iter__(self) -> Iterator[RankBatch]:
        if self._num_taken:
            self.load_state_dict(self._beginning)
            self._num_taken = 0
        return self

    def __next__(self) -> RankBatch:
        if self._num_taken == self._steps:
            raise StopIteration
        self._num_taken += 1
        return super().__next__()

    def stats(self) -> dict[str, Any]:
        """Return what was read so far; see `Engine.stats`."""
        return self._engine.stats()

    def close(self) -> None:
        """Close files. Closing twice is fine."""
        super().close()
        self._engine.close()

    def __repr__(self) -> str:
        steps = "all steps" if self._steps is None else f"at most {self._steps} steps"
        return f"<Evaluation rank {self.rank} of {self.mesh}: {steps} of {few(self.config.sources)}>"


def evaluation(
    config: PipelineConfig,
    *,
    rank: int | None = None,
    steps: int | None = None,
    sources: Sequence[str] | None = None,
    split: tuple[float, float] | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
) -> Evaluation:
    """Return the rows that a training configuration holds out, as batches for one rank.

    Each row comes once, in file order; the last step is filled with empty sequences, which carry no label, so that all
    ranks take the same number of steps. Sizes of sequences and batches are those of training at its first step.

    Args:
        config: What trains: sources whose `split` leaves rows out.
        rank: Of the mesh; None takes the environment's `RANK`, and 0 where there is one rank.
        steps: At most so many. With several sources, steps are mixed as the weights say, so that a cap keeps the mix.
        sources: Of these alone; None takes all that have a weight.
        split: The part of the rows of every source; None takes what each source's own `split` leaves out.
        mesh: The ranks that evaluate, where they are others than those that train.

    Raises:
        ConfigError: If a source holds no row out, or an argument cannot mean anything.
        SourceError: If a source cannot be read.
    """
    if steps is not None and whole_number(steps, name="steps") < 1:
        raise ConfigError(f"steps must be 1 or more, got {steps}; None takes all that is held out")
    chosen = _chosen(config, sources)
    for name in chosen:
        if config.sources[name].is_unbounded:
            raise ConfigError(
                f"source {name!r} has no end, so no part of it can be held out; leave it out of sources=, and evaluate "
                "on files of it as a source of their own"
            )
    if mesh is not None:
        config = config.on_mesh(mesh.as_dict() if isinstance(mesh, Mesh) else dict(mesh))
    once = {"shuffle": False, "max_epochs": 1, "on_exhausted": "drop"}
    changes: dict[str, Any] = dict.fromkeys(set(config.sources) - set(chosen))
    changes |= {name: {**once, "split": _held_out(config, name) if split is None else split} for name in chosen}
    weights = {name: config.weights[name] for name in chosen}
    if not any(weights.values()):
        weights = dict.fromkeys(chosen, 1.0)
    return Evaluation(
        config.replace(
            sources=changes,
            mixture={
                "weights": weights,
                "mode": "explicit",
                "schedule": [],
                "repetitions": None,
                "on_exhausted": None,
                "feedback": None,
            },
            batch={"last": "pad", "schedule": []},
            shadows=0,
            runtime={"kind": "local"},
            checkpoint=None,
        ),
        rank=rank,
        steps=steps,
    )


def _chosen(config: PipelineConfig, sources: Sequence[str] | None) -> list[str]:
    if sources is None:
        return [name for name, weight in config.weights.items() if weight] or list(config.sources)
    if isinstance(sources, str) or not sources:
        raise ConfigError(f"sources must be a list of names, got {sources!r}; None takes all that have a weight")
    for name in sources:
        if name not in config.sources:
            raise ConfigError(f"there is no source {name!r}; the configuration has {few(config.sources)}")
    return list(dict.fromkeys(sources))


def _held_out(config: PipelineConfig, name: str) -> tuple[float, float]:
    """Return the part of a source's rows that its `split` leaves out."""
    low, high = config.sources[name].split
    if (low, high) == _WHOLE:
        raise ConfigError(
            f"source {name!r} holds nothing out: training takes all of its rows; set sources.{name}.split: [0.0, 0.95] "
            "there, leave it out of sources=, or say split= if it is not trained on"
        )
    if low > 0.0 and high < 1.0:
        raise ConfigError(
            f"source {name!r} leaves two parts out, below {low} and above {high}; say split= to choose one"
        )
    return (high, 1.0) if low == 0.0 else (0.0, low)
