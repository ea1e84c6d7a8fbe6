"""Rows of any placement equal those of a token-by-token reference."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from msd.constructor import DataConstructor
from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId
from msd.testing.plans import Placed, plan_by_hand

SEQUENCE = 24


@st.composite
def sequences(draw: st.DrawFn, ordinals: "itertools.count[int]", multiple: int) -> list[Placed]:
    """Return documents of one sequence, at extents rounded up to `multiple`, some of them cut, masked, with images."""
    placed: list[Placed] = []
    offset = 0
    while offset < SEQUENCE and draw(st.integers(0, 4)):
        length = draw(st.integers(1, SEQUENCE - offset))
        num_image_tokens = draw(st.integers(0, length))
        start = draw(st.sampled_from([0, num_image_tokens]))
        total = start + length + draw(st.integers(0, 3))
        trained = draw(st.none() | st.lists(st.integers(0, 1), min_size=total, max_size=total))
        sample = Sample(
            id=SampleId("web", next(ordinals), 0),
            tokens_T=np.array(draw(st.lists(st.integers(1, 50), min_size=total, max_size=total)), dtype=np.int32),
            num_image_tokens=num_image_tokens,
            trained_T=None if trained is None else np.array(trained, dtype=np.uint8),
        )
        placed.append(Placed(sample, offset, start, length))
        offset += -(-length // multiple) * multiple
    return placed


def reference(placed: list[Placed], length: int) -> dict[str, list[int]]:
    """Return the fields of a row, one token at a time."""
    row = {
        "input_ids": [0] * length,
        "labels": [-100] * length,
        "position_ids": [0] * length,
        "segment_ids": [0] * length,
    }
    for number, piece in enumerate(placed, start=1):
        sample = piece.sample
        for j in range(piece.num_tokens):
            at, token = piece.offset + j, piece.start + j
            row["input_ids"][at] = int(sample.tokens_T[token])
            row["position_ids"][at] = j
            row["segment_ids"][at] = number
            is_context = sample.trained_T is not None and j + 1 < piece.num_tokens and not sample.trained_T[token + 1]
            if j + 1 < piece.num_tokens and token >= sample.num_image_tokens and not is_context:
                row["labels"][at] = int(sample.tokens_T[token + 1])
    return row


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data(), cp=st.sampled_from([1, 2, 3]), num_sequences=st.integers(1, 3))
def test_rows_and_slices_equal_a_token_by_token_reference(data, cp, num_sequences):
    multiple, ordinals = (2 * cp if cp > 1 else 1), itertools.count()
    placed = []
    for sequence in range(num_sequences):
        drawn = data.draw(sequences(ordinals, multiple))
        if not drawn:
            break  # empty sequences come last in a row
        placed += [Placed(p.sample, p.offset + sequence * SEQUENCE, p.start, p.length) for p in drawn]
    plan = plan_by_hand(
        [[placed]], mesh=Mesh.of(dp=1, cp=cp), sequence_length=SEQUENCE, sequences_per_microbatch=num_sequences,
        document_multiple=multiple, slice_axis="cp" if cp > 1 else None,
    )  # fmt: skip
    samples = {p.sample.id: p.sample for p in placed}
    constructor = DataConstructor(pad_token_id=0)
    assembled = constructor.build(plan, 0, samples.__getitem__)
    expected = reference(placed, num_sequences * SEQUENCE)
    num_valid = 0
    for rank in range(cp):
        batch = constructor.rank_batch(assembled, plan, rank)
        [row] = batch.microbatches
        held = [
            at
            for first, end in itertools.pairwise(row.cu_seqlens_padded.tolist())
            for at in range(first, end)
            if (at - first) * 2 * cp // (end - first) in (rank, 2 * cp - 1 - rank)
        ]
        for name, values in expected.items():
            assert getattr(row, name).tolist() == [values[at] for at in held], name
        assert row.loss_mask.tolist() == [float(expected["labels"][at] != -100) for at in held]
        num_valid += batch.num_valid_tokens
    assert num_valid == plan.global_num_valid_tokens == sum(label != -100 for label in expected["labels"])
