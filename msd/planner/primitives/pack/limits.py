"""What a sequence may hold besides tokens: the memory that images and attention take."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from msd.core.arrays import Int32Array, Int64Array
from msd.core.checks import whole_number
from msd.errors import ConfigError
from msd.planner.piece import Piece

_LOADS: dict[str, Callable[[Piece], int]] = {
    "patches": lambda piece: piece.num_patches,
    "image_tokens": lambda piece: piece.num_image_tokens,
    "images": lambda piece: piece.num_images,
    "attention": lambda piece: sum(document.length**2 for document in piece.documents),
}

Column = Int32Array | Int64Array
Loads = tuple[int, ...]
"""How much of each limit that is set, in the order of `Limits.caps`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one sequence may hold; None does not limit."""

    patches: int | None = None
    """Image patches, before merging."""
    image_tokens: int | None = None
    """Image placeholders: what the backbone sees of images."""
    images: int | None = None
    attention: int | None = None
    """Sum of the squared lengths of its documents: what the attention matrices take."""
    names: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """Of the limits that are set."""
    caps: Loads = field(init=False, compare=False, repr=False)
    """The limits that are set, in the order of `names`."""

    def __post_init__(self) -> None:
        for name in _LOADS:
            cap = getattr(self, name)
            if cap is not None and whole_number(cap, name=f"pack: limit {name}") < 1:
                raise ConfigError(f"pack: limit {name} must be at least 1, got {cap}; leave it out to set no limit")
        names = tuple(name for name in _LOADS if getattr(self, name) is not None)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "caps", tuple(getattr(self, name) for name in names))

    def __bool__(self) -> bool:
        return bool(self.caps)

    def __str__(self) -> str:
        return ", ".join(f"{name} <= {cap}" for name, cap in zip(self.names, self.caps, strict=True))

    def loads(self, piece: Piece) -> Loads:
        """Return how much a document takes of each limit that is set."""
        return tuple(_LOADS[name](piece) for name in self.names)

    def loads_D(
        self, *, length_D: Column, num_image_tokens_D: Column, num_images_D: Column, num_patches_D: Column
    ) -> list[Int64Array]:
        """Return how much each of many documents takes, one column for each limit that is set."""
        columns = {
            "patches": num_patches_D,
            "image_tokens": num_image_tokens_D,
            "images": num_images_D,
            "attention": length_D.astype(np.int64) ** 2,
        }
        return [columns[name].astype(np.int64) for name in self.names]

    def excess(self, piece: Piece) -> str:
        """Return which limit a document breaks on its own, as words, or nothing."""
        for name, load, cap in zip(self.names, self.loads(piece), self.caps, strict=True):
            if load > cap:
                return f"{load} {name} > batch.limits.{name} {cap}"
        return ""

    def size(self, piece: Piece, extent: int, sequence_length: int) -> int:
        """Return the share of a sequence that a document takes, in tokens: the largest of its room and each limit.

        A sequence that cannot take a document and that document are together larger than a sequence, so what is
        true of packing by room is true of packing under limits with sizes in its place.
        """
        loads = zip(self.loads(piece), self.caps, strict=True)
        return max([extent, *(-(-load * sequence_length // cap) for load, cap in loads)])


NO_LIMITS = Limits()
