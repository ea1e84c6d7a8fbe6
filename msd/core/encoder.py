"""Who encodes each image of a step and who receives its embeddings, where that is not the rank of its row."""

# I = images of the step, in the order of its documents. B = buckets. E = ranks that encode.

from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderPlan:
    """Which rank encodes each image, and where its embeddings go.

    An image stands for `num_tokens_I` placeholders of its document's row; its embeddings, as many, are sent to every
    rank of `receivers_B[bucket]` that holds their positions.
    """

    ranks_E: tuple[int, ...]
    """Ranks that encode."""
    receivers_B: tuple[tuple[int, ...], ...]
    """Ranks that embed the rows of each bucket: those of the first pipeline stage."""
    returns: tuple[int, ...]
    """Receivers whose gradients go back: of those that differ along `tp` or `ep` alone, which compute the same, the
    first."""
    num_rounds: int
    """How often a step's ranks meet to exchange embeddings: once in every slot, or once for all slots."""
    document_I: Int32Array
    """Document of the plan that owns the image."""
    index_I: Int32Array
    """Which of the document's images it is."""
    num_patches_I: Int32Array
    num_tokens_I: Int32Array
    """Embeddings: the placeholders that stand for the image."""
    offset_I: Int32Array
    """Position in the row of the first of them."""
    round_I: Int32Array
    """When it is encoded: the slot of its row, or 0 where a step has one round."""
    rank_I: Int32Array
    """Who encodes it."""

    @property
    def columns(self) -> tuple[Int32Array, ...]:
        """One entry an image each."""
        return (
            self.document_I, self.index_I, self.num_patches_I, self.num_tokens_I, self.offset_I, self.round_I,
            self.rank_I,
        )  # fmt: skip

    def documents_of(self, *ranks: int) -> Int32Array:
        """Return the documents with images that some of these ranks encode, in order, once for each image."""
        documents: Int32Array = self.document_I[np.isin(self.rank_I, ranks)]
        return documents

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that meet in every round, in order: all that encode or receive."""
        return tuple(sorted({*self.ranks_E, *(rank for ranks in self.receivers_B for rank in ranks)}))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderReport:
    """How even encoding is. In each round the ranks wait for the slowest."""

    cost_E: Float64Array
    """Cost of what each rank encodes in the step."""
    slowest: float
    """Sum over rounds of the costliest rank."""
    imbalance: float
    """The same over the sum of the rounds' means, minus 1."""
    imbalance_floor: float
    """What no assignment of whole images can beat."""
    row_imbalance: float
    """The imbalance if the ranks of each row encoded the row's own images, evenly among themselves."""
    moved: float
    """Share of embeddings made by a rank whose own row does not hold them."""
