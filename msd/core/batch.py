"""What one rank receives for one step."""

# T = tokens of a row: sequences per microbatch * sequence_length, or the rank's context-parallel slice of it.
# N = documents of the whole row. I = images of the whole row. P = patches. F = values of one patch (patch * patch * 3).
# G = ranks that exchange embeddings. V = embeddings sent, one for each rank that receives it. W = embeddings received.

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from msd.core.arrays import Float32Array, Int32Array, UInt8Array
from msd.core.slices import SliceMethod

IGNORE_INDEX = -100
"""Label of a position that is not learned, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowImages:
    """Images of the documents of one row; every context-parallel rank gets the whole row's."""

    pixels: UInt8Array
    """uint8 [P, F], in the order of `grids`; [0, 0] where images are encoded apart from their rows."""
    grids: Int32Array
    """int32 [I, 3]: (t, h, w) in patches."""
    owner: Int32Array
    """int32 [I]: index of the document in the row; -1 for a dummy, which has no tokens."""
    starts: Int32Array
    """int32 [I]: position in the row of the image's first placeholder; -1 for a dummy."""


TOKEN_FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "loss_mask")
"""Arrays of a microbatch with one entry a token."""
BOUNDARY_FIELDS = ("cu_seqlens", "cu_seqlens_padded")
IMAGE_FIELDS = ("pixels", "grids", "owner", "starts")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Microbatch:
    """One row: what one rank feeds forward at once. It also reshapes to [sequences, sequence_length].

    With `fields_by_stage` an array that the rank's pipeline stages do not need is None; see `msd.core.stages`.
    """

    num_tokens: int
    """T, which is also the shape of activations on stages that get no tokens."""
    input_ids: Int32Array | None
    """int32 [T]"""
    labels: Int32Array | None
    """int32 [T]: target at each position (the next token of the document), -100 where nothing is learned."""
    position_ids: Int32Array | None
    """int32 [T]: restart at 0 in each document; 0 on padding."""
    segment_ids: Int32Array | None
    """int32 [T]: 1, 2, ... by document of the row; 0 on padding."""
    loss_mask: Float32Array | None
    """float32 [T]: `labels != -100`."""
    cu_seqlens: Int32Array
    """int32 [N + 1]: cumulated real lengths of the documents, padding not counted."""
    cu_seqlens_padded: Int32Array
    """int32 [N + 1]: where each document starts in the whole row; document i occupies
    `[cu_seqlens_padded[i], cu_seqlens_padded[i] + cu_seqlens[i + 1] - cu_seqlens[i])`. Starts at 0, ends at the whole
    row's length."""
    max_seqlen: int
    """Longest real document of the whole row."""
    images: RowImages | None = None
    """None when the row has none, or the stage does not need them."""

    @property
    def num_valid_tokens(self) -> int | None:
        """Positions of this slice that carry a label; None on a stage that gets no labels."""
        return None if self.loss_mask is None else int(np.count_nonzero(self.loss_mask))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that there are, by name; those of images as `images.pixels` and so on."""
        named = {name: getattr(self, name) for name in (*TOKEN_FIELDS, *BOUNDARY_FIELDS)}
        if self.images is not None:
            named |= {f"images.{name}": getattr(self.images, name) for name in IMAGE_FIELDS}
        return {name: array for name, array in named.items() if array is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]], *, num_tokens: int, max_seqlen: int) -> "Microbatch":
        """Return the microbatch whose `arrays` these are."""
        images = {name: arrays[f"images.{name}"] for name in IMAGE_FIELDS if f"images.{name}" in arrays}
        fields: dict[str, Any] = {name: arrays.get(name) for name in TOKEN_FIELDS}
        fields |= {name: arrays[name] for name in BOUNDARY_FIELDS}
        fields["images"] = RowImages(**images) if images else None
        return cls(num_tokens=num_tokens, max_seqlen=max_seqlen, **fields)

    def __repr__(self) -> str:
        images = 0 if self.images is None else len(self.images.grids)
        return f"Microbatch(tokens={self.num_tokens}, documents={len(self.cu_seqlens) - 1}, images={images})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderShare:
    """What one rank encodes in one round, and how embeddings reach the rows that need them.

    The rank encodes its images to `num_embeddings` embeddings, sends those of `send_rows`, `send_counts[g]` to the rank
    `ranks[g]`, one rank after the other, and receives `receive_counts[g]` from it, which lie in its rows at (`slots`,
    `positions`). Gradients go back the same way from the ranks that `returns` names, and sum up.
    """

    pixels: UInt8Array
    """uint8 [P, F]: the images that this rank encodes, wherever their rows lie."""
    grids: Int32Array
    """int32 [images, 3]: (t, h, w) of each, in patches."""
    num_embeddings: int
    """How many embeddings its encoder makes of them, in their order."""
    ranks: Int32Array
    """int32 [G]: the ranks that meet, the same on all of them."""
    returns: Int32Array
    """int32 [G]: 1 where gradients come back from; ranks that repeat another's work return none."""
    send_counts: Int32Array
    """int32 [G]"""
    send_rows: Int32Array
    """int32 [V]: which of this rank's embeddings; those that several ranks need stand several times."""
    receive_counts: Int32Array
    """int32 [G]"""
    slots: Int32Array
    """int32 [W]: microbatch of each embedding received."""
    positions: Int32Array
    """int32 [W]: its position in the row as this rank holds it, whole or a slice."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(self, name).nbytes for name in SHARE_FIELDS)


SHARE_FIELDS = (
    "pixels", "grids", "ranks", "returns", "send_counts", "send_rows", "receive_counts", "slots", "positions",
)  # fmt: skip
"""Arrays of an encoder's share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMarker:
    """Stands for a microbatch that another rank fetches and broadcasts."""

    root: int
    """The rank that fetches it."""
    shapes: dict[str, tuple[tuple[int, ...], str]]
    """Field name to (shape, dtype) of what the root will send."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBatch:
    """What one rank receives for one optimizer step."""

    step: int
    rank: int
    sample_ids: list[tuple[str, int, int]]
    """(source, ordinal, part) of the documents of the rank's rows, in order; repeated for each piece of a cut part."""
    microbatches: list[Microbatch]
    """Empty when the rank receives its microbatches from `markers[i].root`."""
    num_valid_tokens: int
    """Labelled positions of the slice of this rank, over its microbatches; the same on all its pipeline stages, also on
    those that get no labels."""
    global_num_valid_tokens: int
    """Labelled positions of the step, each (dp, cp) coordinate counted once: the denominator of the loss."""
    sequence_length: int
    """Tokens of a sequence: a whole row reshapes to [sequences, sequence_length]."""
    slice_method: SliceMethod | None = None
    """How the slice of each row that this rank holds is cut; None when it holds whole rows."""
    generation: int = 0
    markers: list[BatchMarker] = field(default_factory=list)
    """One a microbatch, when a `broadcast` axis says that another rank fetches; else empty."""
    encoder: list[EncoderShare] = field(default_factory=list)
    """One a round, when images are encoded apart from their rows and this rank encodes or receives; else empty."""
    progress: str = ""
    """The run's position after this step, as JSON; `RankClient.state_dict` decodes it."""

    def __repr__(self) -> str:
        rows = f"{len(self.microbatches)} microbatches" if not self.markers else f"{len(self.markers)} markers"
        documents = f"{len(self.sample_ids)} documents, {self.num_valid_tokens} labelled tokens"
        encodes = f", encodes {sum(len(share.grids) for share in self.encoder)} images" if self.encoder else ""
        return f"<RankBatch step={self.step} rank={self.rank}: {rows}, {documents}{encodes}>"

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(row.nbytes for row in self.microbatches) + sum(share.nbytes for share in self.encoder)
