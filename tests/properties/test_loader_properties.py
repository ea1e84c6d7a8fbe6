"""Windows may be divided among any loaders at any speed: what comes out is a function of the order alone."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from msd.core.order import SourceOrder
from msd.core.sample import SampleId
from msd.loader.loader import SourceLoader
from msd.loader.transforms.chain import build_chain
from msd.loader.transforms.config import ChunkConfig, FilterConfig, FunctionConfig, TokenizeConfig
from msd.sources.base import BadRow
from msd.testing.fakes import list_source


def noisy(sample, rng):
    """Fails, leaves out, multiplies or changes a row, as its own generator says."""
    if sample["n"] % 7 == 3:
        raise ValueError("seven")
    return [{**sample, "text": sample["text"] + chr(97 + int(rng.integers(26)))} for _ in range(int(rng.integers(3)))]


TRANSFORMS = [
    FilterConfig(field="n", at_most=90),
    FunctionConfig(function=noisy),
    ChunkConfig(size=9, overlap=2, unit="characters"),
    TokenizeConfig(tokenizer="bytes", append_eos=True),
]


def source(num_rows, rows_per_block):
    rows = [
        BadRow(f"line {n}") if n % 11 == 5 else {"n": n, "text": "x" * (n % 13), "half": [n] * 3}
        for n in range(num_rows)
    ]
    return list_source(rows, rows_per_block=rows_per_block, block_bytes=rows_per_block * 64)


def loader_of(blocks, reader, *, window_blocks, epochs, buffer_bytes):
    order = SourceOrder(seed=9, source="web", blocks=blocks, shuffle=True, window_blocks=window_blocks)
    chain = build_chain("web", TRANSFORMS, seed=9, sequence_length=6, overflow="split")
    return SourceLoader(
        order=order, reader=reader, chain=chain, total_ordinals=order.total_ordinals(epochs), buffer_bytes=buffer_bytes
    )


def seen(loader, table):
    """Return everything that is told and delivered of each row of a table."""
    reasons = {failure.ordinal: failure for failure in table.failures}
    rows = {}
    for row, (count, outcome) in enumerate(zip(table.num_parts_R.tolist(), table.outcome_R.tolist(), strict=True)):
        ordinal = table.start + row
        rows[ordinal] = (outcome, reasons.get(ordinal), [SampleId("web", ordinal, part) for part in range(count)])
    return rows


def payload(loader, ids):
    slab = loader.fetch(ids)
    return {sample_id: slab.sample(sample_id).tokens_T.tolist() for sample_id in ids}


def walk(loader, end, step):
    rows, ordinal = {}, 0
    while ordinal < end:
        table = loader.examine(ordinal, step)
        rows |= seen(loader, table)
        ordinal = table.end
    return rows


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_rows=st.integers(1, 100),
    rows_per_block=st.integers(1, 12),
    window_blocks=st.integers(1, 5),
    epochs=st.sampled_from([0.4, 1, 1.5, 3]),
    num_loaders=st.integers(1, 5),
    buffer_bytes=st.sampled_from([0, 3000, 1 << 20]),
    scheduling=st.integers(0, 10**6),
)
def test_any_owners_of_windows_at_any_speed_give_the_same(
    num_rows, rows_per_block, window_blocks, epochs, num_loaders, buffer_bytes, scheduling
):
    """Answers GR-4."""
    blocks, reader = source(num_rows, rows_per_block)
    make = {"window_blocks": window_blocks, "epochs": epochs}
    alone = loader_of(blocks, reader, **make, buffer_bytes=1 << 22)
    end = alone._order.total_ordinals(epochs)
    expected = walk(alone, end, step=16)
    expected_payload = payload(alone, [sample_id for _, _, ids in expected.values() for sample_id in ids])

    chance = random.Random(scheduling)
    owners = [loader_of(blocks, reader, **make, buffer_bytes=buffer_bytes) for _ in range(num_loaders)]
    open_windows = []
    ordinal = 0
    while ordinal < end:
        window = alone._order.window_at(ordinal)
        last = min(window.first_ordinal + window.num_rows, end)
        open_windows.append([chance.choice(owners), ordinal, last])
        ordinal = last
    rows, delivered, waiting = {}, {}, []
    while open_windows:
        owned = chance.choice(open_windows)
        loader, at, last = owned
        table = loader.examine(at, chance.randint(1, 9))
        found = seen(loader, table)
        rows |= found
        waiting += [(loader, sample_id) for _, _, ids in found.values() for sample_id in ids]
        chance.shuffle(waiting)
        for owner, sample_id in waiting[: chance.randint(0, 4)]:
            delivered |= payload(owner, [sample_id])
        owned[1] = table.end
        assert table.end <= last
        if table.end == last:
            open_windows.remove(owned)
    for owner in owners:
        delivered |= payload(owner, [sample_id for held_by, sample_id in waiting if held_by is owner])
    assert rows == expected
    assert sorted(rows) == list(range(end))
    assert delivered == expected_payload


@settings(max_examples=25, deadline=None, derandomize=True)
@given(num_rows=st.integers(1, 60), rows_per_block=st.integers(1, 9), window_blocks=st.integers(1, 4))
def test_every_row_of_an_epoch_is_examined_exactly_once(num_rows, rows_per_block, window_blocks):
    rows = [{"input_ids": [n]} for n in range(num_rows)]
    blocks, reader = list_source(rows, rows_per_block=rows_per_block)
    order = SourceOrder(seed=9, source="web", blocks=blocks, shuffle=True, window_blocks=window_blocks)
    chain = build_chain("web", [], seed=9, sequence_length=6, overflow="split")
    loader = SourceLoader(order=order, reader=reader, chain=chain, total_ordinals=2 * num_rows)
    told = walk(loader, 2 * num_rows, step=5)
    got = payload(loader, [SampleId("web", ordinal, 0) for ordinal in told])
    epochs = [sorted(ids[0] for sample_id, ids in got.items() if sample_id.ordinal // num_rows == e) for e in (0, 1)]
    assert epochs == [list(range(num_rows))] * 2


@settings(max_examples=25, deadline=None, derandomize=True)
@given(overflow=st.sampled_from(["split", "truncate"]), lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_split_loses_no_token_and_truncate_only_what_it_counts(overflow, lengths):
    chain = build_chain("web", [], seed=9, sequence_length=6, overflow=overflow)
    for ordinal, length in enumerate(lengths):
        (result,) = chain.apply([(ordinal, {"input_ids": list(range(length))})])
        kept = [token for sample in result.samples for token in sample.tokens_T.tolist()]
        assert kept == list(range(length - result.num_truncated_tokens))
        assert all(0 < len(sample.tokens_T) <= 6 for sample in result.samples)
        assert result.num_truncated_tokens == (max(0, length - 6) if overflow == "truncate" else 0)
