"""Packed sequences taken apart: each document as it was, and rows that cannot have been packed fail."""

import numpy as np
import pytest

from msd.core.sample import Outcome
from msd.core.written import Written, WrittenImages
from msd.loader.transforms.chain import build_chain

IGNORE = -100
TERMS = {
    "sequence_length": 16, "document_multiple": 4, "num_buckets": 1, "num_microbatches": 1, "sequences_per_step": 1,
    "tokenizers": (), "images": WrittenImages(patch=1, merge=2, image_token=99), "fingerprint": "f",
}  # fmt: skip


def row(**changes):
    """Two documents of 5 and 3 tokens; the second token of the first is context only."""
    ids = [1, 2, 3, 4, 5, 0, 0, 0, 6, 7, 8, 0, 0, 0, 0, 0]
    labels = [IGNORE, 3, 4, 5, *[IGNORE] * 4, 7, 8, *[IGNORE] * 6]
    return {
        "input_ids": np.array(ids, dtype=np.int32), "labels": np.array(labels, dtype=np.int32),
        "document_starts": [0, 8], "document_lengths": [5, 3], "pixels": None, "grids": None, "image_documents": None,
        "image_starts": None, **changes,
    }  # fmt: skip


def unpacked(fields, **terms):
    chain = build_chain("old", [], seed=0, sequence_length=16, overflow="split", written=Written(**{**TERMS, **terms}))
    (result,) = chain.apply([(7, fields)])
    return result


def test_documents_come_with_their_tokens_and_what_is_learned_of_them():
    first, second = unpacked(row()).samples
    assert (first.id, second.id) == (("old", 7, 0), ("old", 7, 1))
    assert first.tokens_T.tolist() == [1, 2, 3, 4, 5]
    assert first.label_runs().tolist() == [[1, 4]]
    assert second.tokens_T.tolist() == [6, 7, 8]
    assert second.trained_T is None


def test_images_come_with_their_documents_and_their_placeholders():
    ids = [99, 99, 4, 5, 0, 0, 0, 0, 99, 8, 9, *[0] * 5]
    # The documents have lengths 4 and 3, on multiples of 4; the first has images of 2 x 2 patches each.
    fields = row(
        input_ids=np.array(ids, dtype=np.int32),
        labels=np.array([IGNORE, IGNORE, 5, *[IGNORE] * 6, 9, *[IGNORE] * 6], dtype=np.int32),
        document_starts=[0, 4, 8], document_lengths=[4, 1, 3], pixels=bytes(range(36)), grids=[1, 2, 2] * 3,
        image_documents=[0, 0, 2], image_starts=[0, 1, 8],
    )  # fmt: skip
    first, middle, last = unpacked(fields).samples
    assert (first.num_image_tokens, middle.num_image_tokens, last.num_image_tokens) == (2, 0, 1)
    assert first.images.starts_I.tolist() == [0, 1]
    assert first.images.pixels_PF.tobytes() + last.images.pixels_PF.tobytes() == bytes(range(36))
    assert middle.images is None
    assert first.label_runs().tolist() == [[2, 3]]


def test_an_empty_sequence_gives_nothing_and_is_no_failure():
    blank = np.full(16, IGNORE, dtype=np.int32)
    result = unpacked(
        row(input_ids=np.zeros(16, dtype=np.int32), labels=blank, document_starts=[], document_lengths=[])
    )
    assert (result.outcome, result.samples) == (Outcome.FILTERED, ())


@pytest.mark.parametrize(
    ("changes", "terms", "said"),
    [
        ({}, {"sequence_length": 32}, "it has 16 tokens and 16 labels, and sequences have 32"),
        ({}, {"document_multiple": 2}, "which is not one after another"),
        ({"document_lengths": [5, 9]}, {}, "which is not one after another"),
        ({"document_lengths": [5]}, {}, "where 2 documents start, and that 1 have tokens"),
        ({"labels": np.arange(16)}, {}, "its labels are not the tokens that follow"),
        ({"pixels": b"12"}, {"images": None}, "its folder was written by sources that had none"),
        ({"pixels": b"12", "grids": [1, 2, 2], "image_documents": [0]}, {}, "2 bytes of 1 images with 4 patches"),
        ({"pixels": bytes(12), "grids": [1, 2, 2], "image_documents": [0]}, {}, "need 1 placeholders"),
        ({"input_ids": "abc"}, {}, "must be a list of numbers, got str"),
    ],
)  # fmt: skip
def test_rows_that_were_not_packed_so_fail_with_the_reason(changes, terms, said):
    result = unpacked(row(**changes), **terms)
    assert result.outcome is Outcome.FAILED
    assert said in result.reason
