"""What one sequence of a step takes of a sample: sequences may be shorter than when parts were made, or limited."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msd.errors import InputError
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack
from msd.planner.settings import SourceTerms


class Fit(NamedTuple):
    """What becomes of a sample."""

    head: Piece | None
    """What a sequence takes."""
    rest: Piece | None = None
    """What is drawn next."""
    lost: str = ""
    """Why something of it is never delivered."""


def fit(piece: Piece, pack: Pack, terms: SourceTerms) -> Fit:
    """Return what a sequence takes of a sample.

    Args:
        piece: The sample, or what is left of it.
        pack: With the sizes of the step.
        terms: Of its source; `overflow` says what becomes of a sample longer than a sequence.

    Raises:
        InputError: If no sequence can take it, for its images or a limit, and `oversize` is error.
    """
    length, overflow = pack.sequence_length, terms.overflow
    head, rest, lost, excess = piece, None, "", ""
    if piece.length > length and overflow == "drop":
        return Fit(None, lost=f"left out: longer than the {length} tokens of a sequence (overflow: drop)")
    if piece.length > length and piece.num_image_tokens > length:
        excess = f"{piece.num_image_tokens} image_tokens in one run > the {length} tokens of a sequence"
    elif piece.length > length:
        head, rest = piece.cut(length)
        if overflow == "truncate":
            rest, lost = None, f"cut off after {length} tokens (overflow: truncate)"
    excess = excess or pack.limits.excess(head)
    if not excess:
        return Fit(head, rest, lost)
    if pack.oversize == "drop":
        return Fit(None, lost=f"left out: {excess.partition(' ')[2]} (batch.oversize: drop)")
    raise InputError(
        f"pack: sample {terms.name}:{piece.ordinal}.{piece.part} fits no sequence: {excess}; raise the limit or "
        "sequence_length, make the sample smaller (max_pixels, chunk, filter), or set batch.oversize: drop"
    )


def fitted(pieces: Iterable[Piece], pack: Pack, terms_S: Sequence[SourceTerms]) -> tuple[list[Piece], list[str]]:
    """Return carried samples as pieces that each fit a sequence, and notes on what is lost of them.

    Raises:
        InputError: If no sequence can take one, and `oversize` is error.
    """
    fitting: list[Piece] = []
    lost_S = [Counter[str]() for _ in terms_S]
    for piece in pieces:
        rest: Piece | None = piece
        while rest is not None:
            found = fit(rest, pack, terms_S[piece.source])
            if found.head is not None:
                fitting.append(found.head)
            if found.lost:
                lost_S[piece.source][found.lost] += 1
            rest = found.rest
    return fitting, [note for terms, lost in zip(terms_S, lost_S, strict=True) for note in notes_of(terms.name, lost)]


def notes_of(source: str, lost: Mapping[str, int]) -> list[str]:
    """Return one line for each reason why samples of a source are not, or not wholly, delivered."""
    return [f"source {source!r}: {count} sample{'s' * (count > 1)} {reason}" for reason, count in lost.items()]
