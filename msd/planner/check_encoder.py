"""What must hold of images that are encoded apart from their rows: each once, whole, its embeddings where it stands."""

# D = documents. I = images.

import functools

import numpy as np

from msd.core.arrays import BoolArray, Int32Array, Int64Array
from msd.core.encoder import EncoderPlan
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan


def check_encoder(plan: StepPlan) -> list[str]:
    """Return the rules that a plan breaks in who encodes its images, one line each."""
    encoder = plan.encoder
    if encoder is None:
        return []
    num_images_D = plan.num_images_D.astype(np.int64)
    document_I = np.repeat(np.arange(plan.num_documents), num_images_D)
    index_I = np.arange(len(document_I)) - np.repeat(np.cumsum(num_images_D) - num_images_D, num_images_D)
    if any(len(column) != len(document_I) for column in encoder.columns):
        return [f"{len(encoder.document_I)} images are to be encoded, the step has {len(document_I)}"]
    if not (np.array_equal(encoder.document_I, document_I) and np.array_equal(encoder.index_I, index_I)):
        return ["the images to be encoded are not those of the documents, each once and in order"]
    before_I = np.cumsum(encoder.num_tokens_I, dtype=np.int64) - encoder.num_tokens_I
    start_I = plan.offset_D[document_I] + before_I - before_I[np.searchsorted(document_I, document_I)]
    rules: list[tuple[str, BoolArray]] = [
        ("has no patches", encoder.num_patches_I < 1),
        ("is encoded by a rank that does not encode", ~np.isin(encoder.rank_I, encoder.ranks_E)),
        ("is not encoded in the round of its slot", encoder.round_I != _rounds(plan, encoder, document_I)),
        ("has its embeddings elsewhere than its placeholders", encoder.offset_I != start_I),
        ("has other patches than its document", _differs(encoder.num_patches_I, document_I, plan.num_patches_D)),
        ("has other embeddings than its document", _differs(encoder.num_tokens_I, document_I, plan.num_image_tokens_D)),
    ]
    broken = [
        f"{int(broken_I.sum())} images: image {int(index_I[broken_I.argmax()])} of "
        f"{_name(plan, int(document_I[broken_I.argmax()]))} {rule}"
        for rule, broken_I in rules
        if broken_I.any()
    ]
    return broken + _check_exchange(plan, encoder)


@functools.lru_cache(maxsize=4)
def _receiving(
    mesh: Mesh, consumers_B: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return who must receive embeddings of each bucket, and whose gradients count."""
    at = {rank: mesh.coordinate(rank) for ranks in consumers_B for rank in ranks}
    receivers_B = tuple(tuple(rank for rank in ranks if at[rank]["pp"] == 0) for ranks in consumers_B)
    counted = {
        (bucket, *(index for axis, index in sorted(at[rank].items()) if axis not in ("tp", "ep"))): rank
        for bucket, ranks in enumerate(receivers_B)
        for rank in sorted(ranks, reverse=True)
    }
    return receivers_B, tuple(sorted(counted.values()))


def _rounds(plan: StepPlan, encoder: EncoderPlan, document_I: Int64Array) -> Int32Array:
    slot_I: Int32Array = plan.slot_D[document_I]
    return slot_I if encoder.num_rounds > 1 else np.zeros_like(slot_I)


def _differs(value_I: Int32Array, document_I: Int64Array, total_D: Int32Array) -> BoolArray:
    """Return whether the values of an image's document sum to something else than the document's."""
    differs_D = np.bincount(document_I, weights=value_I, minlength=len(total_D)) != total_D
    differs_I: BoolArray = differs_D[document_I]
    return differs_I


def _check_exchange(plan: StepPlan, encoder: EncoderPlan) -> list[str]:
    broken = []
    if encoder.num_rounds not in (1, plan.num_microbatches):
        broken.append(f"images are encoded in {encoder.num_rounds} rounds, the step has {plan.num_microbatches} slots")
    receivers_B, returns = _receiving(plan.mesh, plan.consumers_B)
    if encoder.receivers_B != receivers_B:
        broken.append("embeddings do not go to the ranks of the first pipeline stage of each bucket")
    elif encoder.returns != returns:
        broken.append("gradients do not come back from one rank of those that compute the same")
    encoders = set(encoder.ranks_E)
    if len(encoders) != len(encoder.ranks_E) or not encoders <= set(range(plan.mesh.world_size)):
        broken.append("the ranks that encode are not different ranks of the mesh")
    return broken


def _name(plan: StepPlan, document: int) -> str:
    source, ordinal, part = plan.sample_id(document)
    return f"{source}:{ordinal}.{part}"
