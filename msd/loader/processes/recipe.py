"""How the transforms of a source are built, as a value that travels."""

from collections.abc import Sequence
from dataclasses import dataclass

import cloudpickle

from msd.core.written import Written
from msd.errors import ConfigError, told
from msd.loader.transforms.chain import TransformChain, build_chain
from msd.loader.transforms.config import TransformConfig
from msd.loader.transforms.finish import Overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecipe:
    """What `build_chain` takes."""

    source: str
    transforms: Sequence[TransformConfig]
    seed: int
    sequence_length: int
    overflow: Overflow
    written: Written | None = None

    def build(self) -> TransformChain:
        """Return the chain.

        Raises:
            ConfigError: If a transform cannot be used here.
        """
        return build_chain(
            self.source,
            self.transforms,
            seed=self.seed,
            sequence_length=self.sequence_length,
            overflow=self.overflow,
            written=self.written,
        )

    def packed(self) -> bytes:
        """Return it as bytes; functions travel as they do to a worker: by name, or by value where there is none.

        To be called before a function ran, which may leave behind what cannot travel.

        Raises:
            ConfigError: If a function holds something that cannot travel.
        """
        try:
            packed: bytes = cloudpickle.dumps(self)
        except Exception as error:
            raise ConfigError(
                f"sources.{self.source}: its transforms cannot be sent to another process ({told(error)}); "
                "set transform_in: threads"
            ) from None
        return packed
