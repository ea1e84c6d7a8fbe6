"""What a rank encodes, and how embeddings reach the rows that need them.

Both sides of an exchange work out the same order from the plan alone: by rank, then by image in the order of the plan,
then by position.
"""

# I = images of the step. V = embeddings, of chosen images. G = ranks that meet. P = patches. F = values of one patch.

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from msd.constructor.packing import row_boundaries
from msd.core.arrays import Int32Array, Int64Array, UInt8Array
from msd.core.batch import EncoderShare
from msd.core.encoder import EncoderPlan
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId
from msd.core.slices import held_positions
from msd.errors import ConfigError, PlanError


def encoded_by(plan: StepPlan, rank: int) -> list[SampleId]:
    """Return the samples whose images, or some of them, `rank` encodes; once each, in the order of the plan."""
    if plan.encoder is None:
        return []
    return list(dict.fromkeys(plan.sample_id(document) for document in plan.encoder.documents_of(rank).tolist()))


def encoder_shares(
    plan: StepPlan, rank: int, sample_of: Callable[[SampleId], Sample], *, patch_values: int
) -> tuple[EncoderShare, ...]:
    """Return what one rank does in each round; nothing where it neither encodes nor receives.

    Args:
        plan: The step.
        rank: Whose part it is.
        sample_of: The sample with an id; called for each image that the rank encodes.
        patch_values: Values of one patch, which an empty array of patches has too.

    Raises:
        PlanError: If a sample has other images than the plan says. Names the sample.
        ConfigError: If images have patches of another size.
    """
    encoder = plan.encoder
    if encoder is None or rank not in encoder.ranks:
        return ()
    exchange = _Exchange(plan, encoder)
    return tuple(_share(exchange, number, rank, sample_of, patch_values) for number in range(encoder.num_rounds))


def _share(
    exchange: "_Exchange", number: int, rank: int, sample_of: Callable[[SampleId], Sample], patch_values: int
) -> EncoderShare:
    plan, encoder = exchange.plan, exchange.encoder
    mine = np.flatnonzero((encoder.round_I == number) & (encoder.rank_I == rank))
    pixels, grids = _payload(plan, encoder, mine, sample_of, patch_values)
    send_counts, send_rows = exchange.sent(mine)
    receive_counts, slots, positions = exchange.received(number, rank)
    return EncoderShare(
        pixels=pixels,
        grids=grids,
        num_embeddings=int(encoder.num_tokens_I[mine].sum()),
        ranks=exchange.ranks_G,
        returns=exchange.returns_G,
        send_counts=send_counts,
        send_rows=send_rows,
        receive_counts=receive_counts,
        slots=slots,
        positions=positions,
    )


class _Embeddings(NamedTuple):
    """The embeddings of chosen images, one after another."""

    image_V: Int64Array
    """Index into the images of the plan."""
    bucket_V: Int64Array
    slot_V: Int64Array
    position_V: Int64Array
    """In the whole row."""


class _Exchange:
    """Who sends what to whom, in every round of one step."""

    def __init__(self, plan: StepPlan, encoder: EncoderPlan) -> None:
        self.plan = plan
        self.encoder = encoder
        self.ranks_G = np.array(encoder.ranks, dtype=np.int32)
        self.returns_G = np.isin(self.ranks_G, encoder.returns).astype(np.int32)
        self._index_of = {rank: index for index, rank in enumerate(self.ranks_G.tolist())}
        self._places: dict[tuple[int, int], Int64Array] = {}
        """Of a row: for each slice where each position lies in it, -1 where it does not."""

    def sent(self, mine: Int64Array) -> tuple[Int32Array, Int32Array]:
        """Return how many embeddings of these images go to each rank, and which, rank after rank."""
        made = self._embeddings(mine)
        rows_G: list[Int64Array] = [np.empty(0, dtype=np.int64)] * len(self._index_of)
        for bucket in np.unique(made.bucket_V).tolist():
            for rank in self.encoder.receivers_B[bucket]:
                needs_V = (made.bucket_V == bucket) & (self._places_in(made, rank) >= 0)
                rows_G[self._index_of[rank]] = np.flatnonzero(needs_V)
        return _int32([len(rows) for rows in rows_G]), _int32(np.concatenate(rows_G))

    def received(self, number: int, rank: int) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Return how many embeddings come from each rank in a round, and the slot and place of each in its row."""
        encoder, bucket = self.encoder, self.plan.bucket_of(rank)
        num_ranks = len(self._index_of)
        if rank not in encoder.receivers_B[bucket]:
            return _int32(np.zeros(num_ranks)), _int32([]), _int32([])
        of_bucket_I = self.plan.bucket_D[encoder.document_I] == bucket
        mine = self._embeddings(np.flatnonzero(of_bucket_I & (encoder.round_I == number)))
        place_V = self._places_in(mine, rank)
        sender_V = np.searchsorted(self.ranks_G, encoder.rank_I[mine.image_V])
        held = np.flatnonzero(place_V >= 0)
        held = held[np.argsort(sender_V[held], kind="stable")]
        counts_G = np.bincount(sender_V[held], minlength=num_ranks)
        return _int32(counts_G), _int32(mine.slot_V[held]), _int32(place_V[held])

    def _embeddings(self, images: Int64Array) -> _Embeddings:
        count = self.encoder.num_tokens_I[images].astype(np.int64)
        image_V = np.repeat(images, count)
        document_V = self.encoder.document_I[image_V]
        within_V = np.arange(len(image_V)) - np.repeat(np.cumsum(count) - count, count)
        return _Embeddings(
            image_V=image_V,
            bucket_V=self.plan.bucket_D[document_V].astype(np.int64),
            slot_V=self.plan.slot_D[document_V].astype(np.int64),
            position_V=self.encoder.offset_I[image_V] + within_V,
        )

    def _places_in(self, made: _Embeddings, rank: int) -> Int64Array:
        """Return where embeddings lie in what a rank holds of its bucket's rows, -1 where it does not hold them."""
        index = self.plan.slice_of(rank)
        if index is None:
            return made.position_V
        bucket = self.plan.bucket_of(rank)
        place_V = np.full(len(made.position_V), -1, dtype=np.int64)
        for slot in np.unique(made.slot_V[made.bucket_V == bucket]).tolist():
            chosen_V = (made.bucket_V == bucket) & (made.slot_V == slot)
            place_V[chosen_V] = self._row(bucket, slot)[index, made.position_V[chosen_V]]
        return place_V

    def _row(self, bucket: int, slot: int) -> Int64Array:
        """Return where each position of a row lies in each slice, as [C, T]."""
        key = (bucket, slot)
        if key not in self._places:
            plan = self.plan
            documents = plan.documents_of(bucket, slot)
            bounds = row_boundaries(plan.offset_D[documents], plan.length_D[documents], row_length=plan.row_length)
            position_CT = held_positions(
                plan.slice_method,
                bounds.cu_seqlens_padded,
                sequence_length=plan.sequence_length,
                degree=plan.mesh.size(plan.slice_axis or ""),
            )
            place_CT = np.full((len(position_CT), plan.row_length), -1, dtype=np.int64)
            np.put_along_axis(place_CT, position_CT, np.arange(position_CT.shape[1])[None, :], axis=1)
            self._places[key] = place_CT
        return self._places[key]


def _payload(
    plan: StepPlan,
    encoder: EncoderPlan,
    mine: Int64Array,
    sample_of: Callable[[SampleId], Sample],
    patch_values: int,
) -> tuple[UInt8Array, Int32Array]:
    """Return the patches and grids of the images to encode."""
    pixels: list[UInt8Array] = [np.empty((0, patch_values), dtype=np.uint8)]
    grids: list[Int32Array] = [np.empty((0, 3), dtype=np.int32)]
    for document, index, num_patches in zip(
        encoder.document_I[mine].tolist(),
        encoder.index_I[mine].tolist(),
        encoder.num_patches_I[mine].tolist(),
        strict=True,
    ):
        sample = sample_of(plan.sample_id(document))
        patches_PF, grid_3 = _image(sample, index, num_patches)
        if patches_PF.shape[1] != patch_values:
            raise ConfigError(
                f"source {sample.id.source!r} gives patches of {patches_PF.shape[1]} values, the run has patches of "
                f"{patch_values}; give all image transforms the same patch"
            )
        pixels.append(patches_PF)
        grids.append(grid_3[None])
    return np.concatenate(pixels), np.concatenate(grids)


def _image(sample: Sample, index: int, num_patches: int) -> tuple[UInt8Array, Int32Array]:
    """Return the patches and the grid of one image of a sample."""
    counts = [] if sample.images is None else sample.images.num_patches_I.tolist()
    if sample.images is None or index >= len(counts) or counts[index] != num_patches:
        raise PlanError(
            f"image {index} of sample {tuple(sample.id)} is planned with {num_patches} patches, the sample has images "
            f"of {counts}; its payload differs from the metadata it was planned by"
        )
    start = sum(counts[:index])
    return sample.images.pixels_PF[start : start + num_patches], sample.images.grids_I3[index]


def _int32(values: object) -> Int32Array:
    return np.asarray(values, dtype=np.int32)
