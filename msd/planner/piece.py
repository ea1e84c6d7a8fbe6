"""A document before it has a place: a whole part of a row, or a piece of one that was cut; or all of a packed row."""

# L = runs of labelled positions.

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Runs = tuple[tuple[int, int], ...]
"""Half-open runs of positions of the whole part that carry a label."""


class Piece(NamedTuple):
    """Tokens `[start, start + length)` of a part, with what a plan must know of them."""

    source: int
    """Index among the planner's sources, in order of name."""
    ordinal: int
    part: int
    start: int
    length: int
    num_valid: int
    num_image_tokens: int
    """Placeholders at the head of the piece; never cut."""
    num_images: int
    num_patches: int
    runs: Runs = ()
    """Kept only where parts may be cut."""
    image_patches: tuple[int, ...] = ()
    """Patches of each of several images; kept only where images are encoded apart from their rows."""
    drawn: int = 0
    """Step that drew it; kept only where packing asks how long a sample has waited. Before the first step, where it was
    drawn for a step that was dropped."""
    inner: "tuple[Piece, ...]" = ()
    """Documents of a row that was packed before: it takes a whole sequence, and they stay together in it, in order.
    Empty for a document."""

    @classmethod
    def whole(cls, documents: "Sequence[Piece]", sequence_length: int) -> "Piece":
        """Return a row that was packed before, of all its documents: as long as a sequence, whatever they leave."""
        first = documents[0]
        sums = [sum(column) for column in zip(*(document[5:9] for document in documents), strict=True)]
        patches = [count for document in documents for count in document.patches_of_images]
        told = tuple(patches) if len(patches) == sums[2] > 1 else ()
        return cls(
            first.source, first.ordinal, first.part, 0, sequence_length, sums[0], sums[1], sums[2], sums[3],
            image_patches=told, inner=tuple(documents),
        )  # fmt: skip

    @property
    def documents(self) -> "tuple[Piece, ...]":
        """The documents that it stands for: itself, unless it is a row that was packed before."""
        return self.inner or (self,)

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return sum(one.length for one in self.inner) if self.inner else self.length

    @property
    def num_uncut(self) -> int:
        """Tokens at its head that are never cut: image placeholders, and all of a row that was packed before."""
        return self.length if self.inner else self.num_image_tokens

    @property
    def patches_of_images(self) -> tuple[int, ...]:
        """Patches of each image; none where several images are not told apart."""
        return self.image_patches or (self.num_patches,) * (self.num_images == 1)

    def cut(self, length: int) -> "tuple[Piece, Piece]":
        """Return the first `length` tokens and the rest, each a document of its own.

        The last token of a piece has no target inside the piece, so its label is lost.

        Raises:
            ValueError: If the cut would go through image placeholders or a packed row, or leave one side empty.
        """
        if not max(1, self.num_uncut) <= length < self.length:
            raise ValueError(f"cannot cut {self.length} tokens, the first {self.num_uncut} of them never, at {length}")
        middle, end = self.start + length, self.start + self.length
        head = self._replace(length=length, num_valid=num_valid_between(self.runs, self.start, middle))
        tail = self._replace(
            start=middle,
            length=self.length - length,
            num_valid=num_valid_between(self.runs, middle, end),
            num_image_tokens=0,
            num_images=0,
            num_patches=0,
            image_patches=(),
        )
        return head, tail


def documents_of(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the documents that pieces stand for, in order."""
    return [document for piece in pieces for document in piece.documents]


def extent(length: int, multiple: int) -> int:
    """Return the room that a document takes: its length rounded up to the document multiple."""
    return -(-length // multiple) * multiple


def num_valid_between(runs: Runs, start: int, end: int) -> int:
    """Return how many labels a piece [start, end) keeps: its last token has none."""
    return sum(max(0, min(last, end - 1) - max(first, start)) for first, last in runs)
