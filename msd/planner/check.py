"""What must hold of every plan, whoever made it."""

# D = documents. B = buckets.

from collections import Counter

import numpy as np

from msd.core.arrays import BoolArray, Int64Array
from msd.core.plan import StepPlan
from msd.planner.check_encoder import check_encoder
from msd.planner.check_ranks import check_ranks
from msd.planner.primitives.pack import NO_LIMITS, Limits

_SHOWN = 3


def check_plan(plan: StepPlan, members: Int64Array | None = None, limits: Limits = NO_LIMITS) -> list[str]:
    """Return the rules that a plan breaks, one line each; none means that the plan may be sent.

    Args:
        plan: What to check.
        members: What the step must hold, [D, 5]: (index of the source, ordinal, part, start, length) in any order;
            None checks the plan alone.
        limits: The most that a sequence may hold besides tokens.
    """
    broken = _check_columns(plan)
    if broken:
        return broken
    return [
        *_check_places(plan),
        *_check_rows(plan),
        *_check_once(plan),
        *_check_counts(plan),
        *_check_aligned(plan),
        *check_ranks(plan),
        *check_encoder(plan),
        *_check_limits(plan, limits),
        *(_check_members(plan, members) if members is not None else ()),
    ]


def _check_columns(plan: StepPlan) -> list[str]:
    names = [
        "source_D", "ordinal_D", "part_D", "start_D", "length_D", "padded_D", "num_valid_D", "num_image_tokens_D",
        "num_images_D", "num_patches_D", "bucket_D", "slot_D", "offset_D", "cost_D",
    ]  # fmt: skip
    broken = [
        f"{name} has {len(getattr(plan, name))} entries for {plan.num_documents} documents"
        for name in names
        if len(getattr(plan, name)) != plan.num_documents
    ]
    if len(plan.consumers_B) != plan.num_buckets:
        broken.append(f"{len(plan.consumers_B)} groups of consumers for {plan.num_buckets} buckets")
    ranks = sorted(rank for group in plan.consumers_B for rank in group)
    if ranks != list(range(plan.mesh.world_size)):
        broken.append(f"consumers do not name each of {plan.mesh.world_size} ranks once")
    return broken


def _check_places(plan: StepPlan) -> list[str]:
    broken = []
    padded_D, offset_D = plan.padded_D.astype(np.int64), plan.offset_D.astype(np.int64)
    rules: list[tuple[str, BoolArray]] = [
        ("names a source that does not exist", (plan.source_D < 0) | (plan.source_D >= len(plan.source_names))),
        ("lies in no bucket", (plan.bucket_D < 0) | (plan.bucket_D >= plan.num_buckets)),
        ("lies in no slot", (plan.slot_D < 0) | (plan.slot_D >= plan.num_microbatches)),
        ("has no tokens", plan.length_D < 1),
        ("is not padded to the document multiple", padded_D != _up(plan.length_D, plan.document_multiple)),
        ("does not start at a document multiple", offset_D % plan.document_multiple != 0),
        ("lies outside its row", (offset_D < 0) | (offset_D + padded_D > plan.row_length)),
        (
            "crosses the boundary of a sequence",
            offset_D // plan.sequence_length != (offset_D + padded_D - 1) // plan.sequence_length,
        ),
    ]
    for rule, broken_D in rules:
        if broken_D.any():
            broken.append(f"{int(broken_D.sum())} documents: {_name(plan, broken_D)} {rule}")
    return broken


def _check_rows(plan: StepPlan) -> list[str]:
    broken = []
    row_D = plan.bucket_D.astype(np.int64) * plan.num_microbatches + plan.slot_D
    start_D = row_D * plan.row_length + plan.offset_D
    if (np.diff(start_D) <= 0).any():
        broken.append("documents are not in order of (bucket, slot, offset)")
    order = np.argsort(start_D, kind="stable")
    overlap = start_D[order][1:] < (start_D + plan.padded_D)[order][:-1]
    if overlap.any():
        broken_D = np.zeros(plan.num_documents, dtype=np.bool_)
        broken_D[order[1:][overlap]] = True
        broken.append(f"{int(overlap.sum())} documents: {_name(plan, broken_D)} overlaps the one before it")
    num_rows = plan.num_buckets * plan.num_microbatches
    count_R = np.bincount(np.clip(row_D, 0, num_rows - 1), minlength=num_rows)
    if (count_R == 0).any() and not plan.is_last:
        empty = int(count_R.argmin())
        broken.append(
            f"{int((count_R == 0).sum())} microbatches are empty, the first is bucket "
            f"{empty // plan.num_microbatches} slot {empty % plan.num_microbatches}"
        )
    sequence_D = start_D // plan.sequence_length
    filled = np.bincount(np.clip(sequence_D, 0, None), minlength=num_rows * plan.sequences_per_microbatch) > 0
    filled_RQ = filled[: num_rows * plan.sequences_per_microbatch].reshape(num_rows, -1)
    if (filled_RQ[:, 1:] & ~filled_RQ[:, :-1]).any():
        broken.append("an empty sequence does not come last in its row")
    return broken


def _check_once(plan: StepPlan) -> list[str]:
    """Every range of a sample at most once, but for the documents that `last: repeat_tail` repeats."""
    order = np.lexsort((plan.start_D, plan.part_D, plan.ordinal_D, plan.source_D))
    same = np.ones(max(0, plan.num_documents - 1), dtype=np.bool_)
    for column in (plan.source_D, plan.ordinal_D, plan.part_D):
        same &= column[order][1:] == column[order][:-1]
    overlap = same & (plan.start_D[order][1:] < (plan.start_D + plan.length_D)[order][:-1])
    repeated = int(plan.annotations.get("num_repeated", 0))
    if overlap.any() and not (plan.is_last and repeated):
        broken_D = np.zeros(plan.num_documents, dtype=np.bool_)
        broken_D[order[1:][overlap]] = True
        return [f"{int(overlap.sum())} documents: tokens of {_name(plan, broken_D)} stand twice"]
    return []


def _check_counts(plan: StepPlan) -> list[str]:
    broken = []
    unlabelled_D = np.minimum(plan.length_D, 1)
    rules: list[tuple[str, BoolArray]] = [
        (
            "has more labels than tokens with a target",
            (plan.num_valid_D < 0)
            | (plan.num_valid_D > np.maximum(0, plan.length_D - plan.num_image_tokens_D - unlabelled_D)),
        ),
        (
            "has more image placeholders than tokens",
            (plan.num_image_tokens_D < 0) | (plan.num_image_tokens_D > plan.length_D),
        ),
        ("holds images but does not start its sample", (plan.start_D > 0) & (plan.num_images_D > 0)),
    ]
    for rule, broken_D in rules:
        if broken_D.any():
            broken.append(f"{int(broken_D.sum())} documents: {_name(plan, broken_D)} {rule}")
    if plan.global_num_valid_tokens != int(plan.num_valid_D.sum()):
        broken.append(
            f"global_num_valid_tokens is {plan.global_num_valid_tokens}, documents sum to {int(plan.num_valid_D.sum())}"
        )
    return broken


def _check_aligned(plan: StepPlan) -> list[str]:
    """A row carries a dummy just where it has no image, another row of its slot has one, and images are aligned."""
    shape = (plan.num_buckets, plan.num_microbatches)
    if "image" not in plan.align:
        count = int(plan.dummy_BM.sum())
        return [f"{count} rows carry a dummy image, and images are not aligned"] if count else []
    if plan.dummy_BM.shape != shape:
        return [f"dummies are said for {plan.dummy_BM.shape} rows of {shape}"]
    has_BM = np.zeros(shape, dtype=np.bool_)
    holds_D = (plan.num_images_D > 0) & (plan.bucket_D >= 0) & (plan.bucket_D < shape[0])
    holds_D &= (plan.slot_D >= 0) & (plan.slot_D < shape[1])
    has_BM[plan.bucket_D[holds_D], plan.slot_D[holds_D]] = True
    broken = []
    rules: list[tuple[str, BoolArray]] = [
        ("carries a dummy image and has images", plan.dummy_BM & has_BM),
        ("carries a dummy image, and no row of its slot has an image", plan.dummy_BM & ~has_BM.any(axis=0)),
        ("has neither an image nor a dummy, and another row has one", has_BM.any(axis=0) & ~has_BM & ~plan.dummy_BM),
    ]
    for rule, broken_BM in rules:
        if broken_BM.any():
            bucket, slot = divmod(int(broken_BM.argmax()), shape[1])
            broken.append(f"{int(broken_BM.sum())} rows: bucket {bucket} slot {slot} {rule}")
    return broken


def _check_limits(plan: StepPlan, limits: Limits) -> list[str]:
    loads_D = limits.loads_D(
        length_D=plan.length_D,
        num_image_tokens_D=plan.num_image_tokens_D,
        num_images_D=plan.num_images_D,
        num_patches_D=plan.num_patches_D,
    )
    row_D = plan.bucket_D.astype(np.int64) * plan.num_microbatches + plan.slot_D
    sequence_D = (row_D * plan.row_length + plan.offset_D) // plan.sequence_length
    _, place_D = np.unique(sequence_D, return_inverse=True)
    broken = []
    for name, cap, load_D in zip(limits.names, limits.caps, loads_D, strict=True):
        load_S = np.zeros(plan.num_documents, dtype=np.int64)
        np.add.at(load_S, place_D, load_D)
        if (load_S > cap).any():
            over_D = (load_S > cap)[place_D]
            broken.append(
                f"{int((load_S > cap).sum())} sequences hold more than batch.limits.{name} {cap}: that of "
                f"{_name(plan, over_D)} holds {int(load_S.max())}"
            )
    return broken


def _check_members(plan: StepPlan, members: Int64Array) -> list[str]:
    held = np.stack([plan.source_D, plan.ordinal_D, plan.part_D, plan.start_D, plan.length_D], axis=1).astype(np.int64)
    held, wanted = held[np.lexsort(held.T[::-1])], members[np.lexsort(members.T[::-1])]
    if np.array_equal(held, wanted):
        return []
    missing, extra = _difference(wanted.tolist(), held.tolist()), _difference(held.tolist(), wanted.tolist())
    return [
        f"membership differs (source, ordinal, part, start, length): {len(missing)} missing {missing[:_SHOWN]}, "
        f"{len(extra)} too many {extra[:_SHOWN]}"
    ]


def _difference(left: list[list[int]], right: list[list[int]]) -> list[list[int]]:
    rest = Counter(map(tuple, right))
    found = []
    for member in left:
        if rest[tuple(member)] > 0:
            rest[tuple(member)] -= 1
        else:
            found.append(member)
    return found


def _up(length_D: np.ndarray[tuple[int, ...], np.dtype[np.int32]], multiple: int) -> Int64Array:
    padded_D: Int64Array = -(-length_D.astype(np.int64) // multiple) * multiple
    return padded_D


def _name(plan: StepPlan, broken_D: BoolArray) -> str:
    document = int(broken_D.argmax())
    source = int(plan.source_D[document])
    name = plan.source_names[source] if 0 <= source < len(plan.source_names) else f"source {source}"
    return f"{name}:{plan.ordinal_D[document]}.{plan.part_D[document]}"
