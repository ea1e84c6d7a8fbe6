"""The transforms of one source where its configuration wants them: on threads, in processes, or as is found best."""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from msd.core.sample import RawSample
from msd.errors import ConfigError
from msd.loader.processes.decide import Timing, Where
from msd.loader.processes.measure import Measured, Timed, timed_work
from msd.loader.processes.pool import NO_LIMIT_S, TransformProcesses
from msd.loader.processes.recipe import ChainRecipe
from msd.loader.transforms.chain import AppliesTransforms, RowResult
from msd.sources.base import BadRow

_log = logging.getLogger("msd")


class InProcesses:
    """Transforms of one source, in processes; equal to those of the chain, row by row."""

    def __init__(
        self,
        source: str,
        chain: AppliesTransforms,
        recipe: bytes,
        processes: TransformProcesses,
        *,
        hang_s: float = NO_LIMIT_S,
        most: int | None = None,
    ) -> None:
        """Use `processes`.

        Args:
            source: Whose transforms they are.
            chain: The transforms, for rows that cannot be sent.
            recipe: How the processes build the same chain; `ChainRecipe.packed`.
            processes: Of this host.
            hang_s: A row that takes longer ends the process that it is in.
            most: Processes at once for one call; None is all that are idle.
        """
        self._source = source
        self._chain = chain
        self._recipe = recipe
        self._processes = processes
        self._hang_s = hang_s
        self._most = most

    def apply(self, rows: Sequence[tuple[int, RawSample | BadRow]]) -> list[RowResult]:
        """Return what each (ordinal, row) gives; see `TransformChain.apply` and `TransformProcesses.apply`."""
        return self.apply_timed(rows)[0]

    def apply_timed(self, rows: Sequence[tuple[int, RawSample | BadRow]]) -> Timed:
        """Return the same, and what it took: there and, to carry rows across, here. That one waits here is left out."""
        if not rows:
            return [], Timing()
        (results, there), here = timed_work(lambda: self._given(rows))
        return results, there + Timing(wall_s=here.cpu_s, cpu_s=here.cpu_s)

    def _given(self, rows: Sequence[tuple[int, RawSample | BadRow]]) -> Timed:
        given, timing = self._processes.apply(self._source, self._recipe, rows, hang_s=self._hang_s, most=self._most)
        own = iter(self._chain.apply([row for row, result in zip(rows, given, strict=True) if result is None]))
        return [next(own) if result is None else result for result in given], timing


def placed(
    chain: AppliesTransforms,
    recipe: ChainRecipe,
    processes: TransformProcesses,
    *,
    transform_in: Literal["auto", "threads", "processes"],
    num_cores: int,
    hang_s: float = NO_LIMIT_S,
    divided: Callable[[AppliesTransforms], AppliesTransforms] | None = None,
    counted: Callable[[AppliesTransforms], AppliesTransforms] | None = None,
) -> AppliesTransforms:
    """Return the transforms of a source, to run where its configuration says.

    Args:
        chain: The transforms, in the thread that calls.
        recipe: How they were built.
        processes: Of this host.
        transform_in: Of the source.
        num_cores: That this host has for itself; with one, processes are never worth it.
        hang_s: A row that takes longer ends the process that it is in.
        divided: Returns the same transforms, done by several workers at once; None leaves batches whole.
        counted: Returns the same transforms, in the thread that calls, with what they take counted as that of workers.

    Raises:
        ConfigError: If the transforms are to run in processes and cannot be sent there.
    """
    in_threads = chain if divided is None else divided(chain)
    if transform_in == "threads" or (transform_in == "auto" and num_cores < 2):
        return in_threads
    try:
        most = None if divided is None else 1
        in_processes: AppliesTransforms = InProcesses(
            recipe.source, chain, recipe.packed(), processes, hang_s=hang_s, most=most
        )
    except ConfigError:
        if transform_in == "processes":
            raise
        return in_threads
    in_processes = in_processes if divided is None else divided(in_processes)
    if transform_in == "processes":
        return in_processes

    def tell(where: Where) -> None:
        _log.info("source %r is transformed in %s", recipe.source, where)

    return Measured(chain if counted is None else counted(chain), in_processes, in_threads, on_chosen=tell)
