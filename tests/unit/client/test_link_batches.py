from dataclasses import replace

import numpy as np
import pytest
from link_run import ROW_FIELDS, contents, make_batch, make_row, make_share

from msd.client.link.batches import decode, encode
from msd.client.link.frames import ALIGNMENT
from msd.constructor.context_parallel import slice_row
from msd.core.batch import TOKEN_FIELDS, BatchMarker
from msd.core.sample import SampleId
from msd.errors import EngineError


def sliced(row, degree):
    return list(slice_row(row, np.arange(row.num_tokens).reshape(degree, -1)))


def without(row, *names):
    return replace(row, **dict.fromkeys(names))


def sent(encoded, rank=0):
    """What arrives: a header and one aligned buffer."""
    raw = b"".join(encoded.parts)
    buffer = np.empty(len(raw) + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    body = buffer[start : start + len(raw)]
    body[:] = np.frombuffer(raw, np.uint8)
    return {"id": 1, **encoded.header_for(rank)}, body


@pytest.mark.parametrize(
    "batch",
    [
        make_batch(3, rank=5, generation=2),
        make_batch(0, microbatches=[make_row(1, images=False)], sample_ids=[], progress=""),
        make_batch(1, microbatches=[]),
        make_batch(9, progress='{"source": "Füße — 文"}', sample_ids=[SampleId("文", 2**62, 3)]),
        make_batch(2, microbatches=sliced(make_row(4, tokens=48, documents=3), 2), slice_method="zigzag"),
        make_batch(5, microbatches=[without(make_row(7), "labels", "loss_mask"), make_row(8)]),
        make_batch(6, microbatches=[without(make_row(9, images=True), *TOKEN_FIELDS, "images")]),
        make_batch(7, encoder=[make_share(1), make_share(2, images=0, ranks=3)]),
        make_batch(8, microbatches=[], encoder=[make_share(3)]),
    ],
    ids=[
        "text and images",
        "no samples",
        "no rows",
        "other alphabets",
        "context-parallel slices",
        "no labels",
        "a middle stage",
        "images encoded for others",
        "an encoder without rows",
    ],
)
def test_a_batch_arrives_as_it_was_sent(batch):
    encoded = encode(batch)
    assert encoded.nbytes == sum(len(part) for part in encoded.parts)
    assert contents(decode(*sent(encoded, batch.rank))) == contents(batch)


def test_what_stages_do_not_need_is_not_sent():
    row = make_row(4, tokens=512, images=True)
    middle, last = (
        encode(make_batch(0, microbatches=[without(row, *absent, "images")]))
        for absent in (TOKEN_FIELDS, ("input_ids", "position_ids", "segment_ids"))
    )
    assert last.nbytes - middle.nbytes >= 2 * 4 * 512
    assert middle.nbytes < 2000


def test_markers_arrive_as_they_were_sent():
    marker = BatchMarker(root=2, shapes={"input_ids": ((64,), "int32"), "images.pixels": ((8, 12), "uint8")})
    batch = make_batch(4, rank=3, microbatches=[], markers=[marker, marker])
    assert decode(*sent(encode(batch), 3)).markers == [marker, marker]


def test_ranks_with_equal_data_share_one_encoding():
    batch = make_batch(3)
    encoded = encode(batch)
    assert [decode(*sent(encoded, rank)).rank for rank in (0, 6)] == [0, 6]
    # The arrays are referred to, not copied.
    ids_T = batch.microbatches[0].input_ids
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), ids_T) for part in encoded.parts)


def test_arrays_are_aligned_views_of_what_was_received_and_may_be_written():
    header, body = sent(encode(make_batch(3)))
    for row in decode(header, body).microbatches:
        for name in ROW_FIELDS:
            array = getattr(row, name)
            assert array.ctypes.data % ALIGNMENT == 0
            assert np.shares_memory(array, body)
            assert array.flags.writeable


def test_rows_of_a_larger_array_and_strided_ones_are_sent_by_value():
    batch = make_batch(3)
    wide_MT = np.arange(128, dtype=np.int32).reshape(64, 2)
    row = make_row(1)
    object.__setattr__(row, "labels", wide_MT[:, 1])
    arrived = decode(*sent(encode(make_batch(3, microbatches=[row, batch.microbatches[1]]))))
    assert np.array_equal(arrived.microbatches[0].labels, wide_MT[:, 1])


@pytest.mark.parametrize("kept", [0, 10, 400, -64])
def test_a_body_that_is_cut_short_is_refused(kept):
    header, body = sent(encode(make_batch(3)))
    with pytest.raises(EngineError, match="a batch arrived damaged"):
        decode(header, body[:kept])


def test_an_array_of_objects_is_never_made_from_what_arrives():
    header, body = sent(encode(make_batch(3)))
    text = body[: header["description_bytes"]].tobytes()
    body[: len(text)] = np.frombuffer(text.replace(b'"<i4"', b'"|O8"', 1), np.uint8)
    with pytest.raises(EngineError, match=r"damaged: an array of \|O8"):
        decode(header, body)
