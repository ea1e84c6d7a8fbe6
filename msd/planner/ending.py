"""The last step of finite data: what `batch.last` makes of samples that do not fill a step."""

from collections.abc import Sequence
from itertools import cycle

from msd.planner.fitting import fitted
from msd.planner.piece import Piece, documents_of
from msd.planner.primitives.pack import Pack, Packer, begin
from msd.planner.settings import SourceTerms


def repeat_tail(packer: Packer, pieces: Sequence[Piece]) -> int:
    """Place a step's own documents again, from the first, until no sequence is empty; return how many were placed."""
    for piece in cycle(pieces):
        if not packer.num_empty:
            break
        packer.offer(piece)
    return sum(len(documents_of(sequence)) for sequence in packer.sequences) - len(documents_of(pieces))


def has_step(pack: Pack, carried: Sequence[Piece], terms_S: Sequence[SourceTerms], last: str) -> bool:
    """Return whether what is carried gives another step, of these sizes, when nothing more is drawn."""
    carry, _ = fitted(carried, pack, terms_S)
    return bool(carry) and begin(pack, carry).finish(drop=last == "drop")


def undelivered_note(pieces: Sequence[Piece]) -> str:
    """Return the line that counts what `last: drop` leaves out."""
    documents = documents_of(pieces)
    num_tokens = sum(document.length for document in documents)
    return (
        f"{len(documents)} documents of {num_tokens} tokens stay undelivered because the last step is incomplete; "
        "batch.last: pad delivers them"
    )
