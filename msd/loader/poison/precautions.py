"""All that one loader host needs so that no row takes it, and the next host, and the next."""

from collections.abc import Mapping
from pathlib import Path

from msd.errors import ConfigError
from msd.loader.poison.guard import Apart, Guarded, Noted
from msd.loader.poison.notes import CrashNotes, remove_stale
from msd.loader.poison.suspects import Suspects
from msd.loader.poison.watch import Watch
from msd.loader.processes.pool import TransformProcesses
from msd.loader.processes.recipe import ChainRecipe
from msd.loader.transforms.chain import AppliesTransforms, TransformChain


class Precautions:
    """Notes of what is in hand, rows that are suspected, the process that these run in, and the watch over all."""

    def __init__(self, folder: Path, hang_s: Mapping[str, float], *, memory: int | None = None) -> None:
        """Make the notes and start the watch; what other hosts left behind in `folder` is read.

        Args:
            folder: Of the run's notes on this machine.
            hang_s: By source, how long the transforms of a row may take.
            memory: Bytes that this host may hold, and each process that it starts; None is any number.
        """
        self.suspects = Suspects()
        self.memory = memory
        self._hang_s = dict(hang_s)
        self._process = TransformProcesses(1, memory=memory)
        self._notes = CrashNotes(folder, list(hang_s))
        self._watch = Watch(self._notes, self.suspects, hang_s=hang_s, memory=memory)
        self._folder = folder
        remove_stale(folder)
        self.read_others()

    def read_others(self, frozen_s: float | None = None) -> None:
        """Suspect what hosts of the run on this machine had in hand that are gone, or did nothing for `frozen_s`.

        To be called before rows are begun that another host had: it costs a fraction of a millisecond.
        """
        self._watch.read_others(frozen_s)

    def noted(self, chain: TransformChain) -> Noted:
        """Return transforms that write down what they have in hand."""
        return Noted(chain, self._notes)

    def guarded(self, chain: TransformChain, recipe: ChainRecipe, placed: AppliesTransforms) -> Guarded:
        """Return the transforms of a source, of which rows that are suspected run apart.

        Args:
            chain: The transforms, not used yet.
            recipe: How they were built.
            placed: The same, where they run.
        """
        try:
            packed = recipe.packed()
        except ConfigError:
            packed = None
        hang_s = self._hang_s[chain.source]
        apart = Apart(chain, packed, self._process, self._notes, hang_s=hang_s)
        return Guarded(chain.source, placed, apart, self.suspects)

    def close(self) -> None:
        """End the process, the watch and the notes. Closing twice is fine."""
        self._process.close()
        self._watch.close()
        self._notes.close()
        remove_stale(self._folder)
