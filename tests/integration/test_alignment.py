"""Rows of a slot aligned by modality, from configuration to batches."""

import io

import numpy as np
import pytest
from PIL import Image

import msd


def picture() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((16, 24, 3), 200, dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def config(**changes) -> msd.Config:
    """Much text and few photos, over two ranks and four slots."""
    lengths = np.random.default_rng(3).integers(5, 40, 200)
    return msd.Config(
        sources={
            "web": {
                "rows": [{"ids": [1] * int(n)} for n in lengths],
                "transforms": [{"kind": "tokens", "field": "ids"}],
            },
            "photos": {
                "rows": [{"png": picture(), "txt": "seen"}] * 20,
                "transforms": [
                    {"kind": "image", "field": "png", "patch": 4, "merge": 2, "image_token": 300},
                    {"kind": "tokenize", "tokenizer": "bytes", "field": "txt"},
                ],
            },
        },
        mixture={"weights": {"web": 0.9, "photos": 0.1}},
        batch={"sequence_length": 48, "global_batch_size": 8},
        mesh={"dp": 2},
        num_microbatches=4,
        cost={"backbone": {"kind": "tokens"}},
        **changes,
    )


def step(chosen: msd.Config, number: int = 0) -> list[msd.RankBatch]:
    with msd.start(chosen, runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(2)]
        return [[next(client) for client in clients] for _ in range(number + 1)][number]


@pytest.mark.parametrize("number", [0, 1])
def test_in_each_slot_both_ranks_have_images_and_what_stands_in_is_flagged(number):
    """Answers TT-11, VL-2."""
    batches = step(config(balance={"align": ["image"]}), number)
    num_dummies = 0
    for rows in zip(*(batch.microbatches for batch in batches), strict=True):
        assert len({row.images is None for row in rows}) == 1
        for row in rows:
            if row.images is not None and (row.images.owner < 0).any():
                num_dummies += 1
                assert row.images.grids.tolist() == [[1, 2, 2]]
                assert row.images.pixels.shape == (4, 48)
                assert not (row.input_ids == 300).any()
    assert num_dummies


def test_dummies_change_no_token():
    for plain, aligned in zip(
        step(config(balance={"method": "none"})),
        step(config(balance={"align": ["image"], "method": "none"})),
        strict=True,
    ):
        assert plain.sample_ids == aligned.sample_ids
        for left, right in zip(plain.microbatches, aligned.microbatches, strict=True):
            assert (left.input_ids == right.input_ids).all()
            assert (left.labels == right.labels).all()
