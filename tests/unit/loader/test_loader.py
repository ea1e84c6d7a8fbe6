import threading

import numpy as np
import pytest

from msd.core.sample import Outcome, SampleId
from msd.errors import EngineError, SourceError
from msd.loader.transforms.config import ChunkConfig, FilterConfig, FunctionConfig, TokenizeConfig, TokensConfig
from msd.sources.base import BadRow
from msd.testing.blocks import sequence

TEXT = TokenizeConfig(tokenizer="bytes")
NUM_ROWS = 40


def numbered(count=NUM_ROWS):
    return [{"ids": [number] * (number % 5 + 1), "n": number} for number in range(count)]


def examine_all(loader, step=7):
    tables, ordinal = [], 0
    while True:
        table = loader.examine(ordinal, step)
        if not table.num_rows:
            return tables
        tables.append(table)
        ordinal = table.end


def ids_of(tables):
    return [
        SampleId(table.source, table.start + row, part)
        for table in tables
        for row, count in enumerate(table.num_parts_R.tolist())
        for part in range(count)
    ]


def contents(slab):
    return [(sample_id, slab.sample(sample_id).tokens_T.tolist()) for sample_id in slab.ids]


def test_rows_are_examined_in_sequence_up_to_the_end(make_loader):
    loader, _ = make_loader(numbered(), TokensConfig())
    tables = examine_all(loader)
    assert [table.start for table in tables[1:]] == [table.end for table in tables[:-1]]
    assert sum(table.num_rows for table in tables) == NUM_ROWS
    slab = loader.fetch(ids_of(tables))
    expected = [block * 8 + row for block, row in sequence(loader._order, 0, NUM_ROWS)]
    assert [slab.sample(sample_id).tokens_T[0] for sample_id in slab.ids] == expected


def test_an_examination_ends_where_the_window_does(make_loader):
    loader, _ = make_loader(numbered(), TokensConfig(), window_blocks=2)
    assert [loader.examine(start, 100).num_rows for start in (0, 5, 16, 32)] == [16, 11, 16, 8]
    assert loader.examine(NUM_ROWS, 1).num_rows == 0
    assert loader.examine(NUM_ROWS + 5, 1).num_rows == 0


@pytest.mark.parametrize(("epochs", "count"), [(2, 80), (0.5, 20), (1.25, 50), (None, 120)])
def test_epochs_and_fractions_of_them_give_that_many_rows(make_loader, epochs, count):
    loader, _ = make_loader(numbered(), TokensConfig(), epochs=epochs)
    ordinal = 0
    while ordinal < 120 and (table := loader.examine(ordinal, 120 - ordinal)).num_rows:
        ordinal = table.end
    assert ordinal == count


def test_an_empty_source_is_at_its_end(make_loader):
    loader, _ = make_loader([], TokensConfig(), epochs=None)
    assert loader.examine(0, 10).num_rows == 0


def test_the_table_says_what_became_of_each_row(make_loader):
    rows = [{"ids": [1, 2]}, BadRow("bad line"), {"ids": []}, {"ids": [1] * 9}, {"no": 1}, {"ids": [5]}]
    loader, _ = make_loader(rows, TokensConfig(), shuffle=False, length=4)
    table = loader.examine(0, 6)
    good, bad = Outcome.OK, Outcome.FAILED
    assert table.outcome_R.tolist() == [good, bad, Outcome.FILTERED, good, bad, good]
    assert table.num_parts_R.tolist() == [1, 0, 0, 3, 0, 1]
    assert table.num_tokens_S.tolist() == [2, 4, 4, 1, 1]
    assert [(f.ordinal, f.shard, f.row, f.reason) for f in table.failures] == [
        (1, "shard-000", 1, "BadRow: bad line"),
        (4, "shard-000", 4, "MissingField: no field 'ids'; this row has 'no' (in transform 0 tokens)"),
    ]


def test_nothing_is_left_out_without_being_counted(make_loader):
    rows = [{"ids": [1]}, BadRow("bad"), {"ids": []}, {"ids": [1] * 9}, {"no": 1}, {"ids": [5, 5]}]
    loader, _ = make_loader(rows, FilterConfig(field="ids", max_length=9), TokensConfig(), length=4, shuffle=False)
    loader.examine(0, 6)
    counts = loader.counts()
    assert counts["rows_examined"] == 6
    assert counts["failed_by_reason"] == {"BadRow": 1, "MissingField": 1}
    assert (counts["failed_rows"], counts["filtered_rows"], counts["empty_parts"]) == (2, 1, 1)
    assert (counts["parts"], counts["split_pieces"], counts["payload_bytes"]) == (5, 2, 48)
    dropping, _ = make_loader(rows[3:4], TokensConfig(), length=4, overflow="drop")
    dropping.examine(0, 1)
    assert (dropping.counts()["dropped_parts"], dropping.counts()["overflowed_rows"]) == (1, 1)
    cutting, _ = make_loader(rows[3:4], TokensConfig(), length=4, overflow="truncate")
    cutting.examine(0, 1)
    assert cutting.counts()["truncated_tokens"] == 5


def test_a_batch_boundary_leaves_no_trace(make_loader):
    rows = [{"text": "ab" * (number % 4), "n": number} if number % 9 else BadRow("bad") for number in range(200)]
    whole, _ = make_loader(rows, ChunkConfig(size=3, unit="characters"), TEXT, rows_per_block=50)
    single, _ = make_loader(rows, ChunkConfig(size=3, unit="characters"), TEXT, rows_per_block=50)
    table, tables = whole.examine(0, 200), examine_all(single, step=1)
    assert table.num_parts_R.tolist() == [count for one in tables for count in one.num_parts_R]
    assert table.num_tokens_S.tolist() == [count for one in tables for count in one.num_tokens_S]
    assert table.runs_L2.tolist() == [run for one in tables for run in one.runs_L2.tolist()]
    assert table.failures == tuple(failure for one in tables for failure in one.failures)


def test_payload_comes_in_the_order_asked_and_twice_named_once(make_loader):
    loader, _ = make_loader(numbered(), TokensConfig(), shuffle=False)
    loader.examine(0, 20)
    asked = [SampleId("web", 7, 0), SampleId("web", 2, 0), SampleId("web", 7, 0), SampleId("web", 30, 0)]
    slab = loader.fetch(asked)
    assert contents(slab) == [(asked[0], [7] * 3), (asked[1], [2] * 3), (asked[3], [30])]


def test_what_the_buffer_dropped_is_made_again_bit_by_bit(make_loader):
    transforms = (FunctionConfig(function=lambda sample, rng: {"input_ids": rng.integers(0, 99, sample["n"] + 1)}),)
    roomy, _ = make_loader(numbered(), *transforms)
    tight, _ = make_loader(numbered(), *transforms, buffer_bytes=2000)
    tables = examine_all(roomy)
    examine_all(tight)
    backwards = ids_of(tables)[::-1]
    assert contents(tight.fetch(backwards)) == contents(roomy.fetch(backwards))
    assert tight.counts()["rows_remade"] > 30
    assert roomy.counts()["rows_remade"] == 0


def test_rows_that_are_held_are_examined_again_without_being_read_or_transformed(make_loader):
    transforms = (FunctionConfig(function=lambda sample, rng: {"input_ids": rng.integers(0, 99, sample["n"] + 1)}),)
    loader, reader = make_loader(numbered(), *transforms)
    tables = examine_all(loader)
    ids = ids_of(tables)
    handed_out = contents(loader.fetch(ids[:20]))
    examined, reads = loader.counts()["rows_examined"], len(reader.reads)
    again = examine_all(loader)
    assert [table.num_tokens_S.tolist() for table in again] == [table.num_tokens_S.tolist() for table in tables]
    assert (loader.counts()["rows_examined"], len(reader.reads)) == (examined, reads)
    assert loader.counts()["rows_kept"] == examined
    assert contents(loader.fetch(ids[:20])) == handed_out
    assert loader.counts()["rows_remade"] == 0


def test_rows_that_gave_nothing_are_made_again_beside_those_that_are_held(make_loader):
    rows = [{"ids": [1, 2]}, BadRow("bad line"), {"ids": []}, {"ids": [3] * 3}, {"ids": [5]}]
    loader, _ = make_loader(rows, TokensConfig(), shuffle=False)
    first = loader.examine(0, 5)
    again = loader.examine(0, 5)
    assert again.outcome_R.tolist() == first.outcome_R.tolist()
    assert again.num_tokens_S.tolist() == first.num_tokens_S.tolist() == [2, 3, 1]
    assert again.failures == first.failures
    assert (loader.counts()["rows_kept"], loader.counts()["rows_examined"]) == (3, 7)


def test_what_was_released_can_still_be_asked_for(make_loader):
    loader, reader = make_loader(numbered(), TokensConfig())
    ids = ids_of(examine_all(loader))
    before = contents(loader.fetch(ids))
    loader.release(NUM_ROWS)
    reads = len(reader.reads)
    assert contents(loader.fetch(ids)) == before
    assert len(reader.reads) > reads


def test_a_closed_loader_lets_go_of_its_files_and_may_be_used_again(make_loader):
    loader, reader = make_loader(numbered(), TokensConfig())
    first = loader.examine(0, 10)
    loader.close()
    assert reader.num_closed == 1
    assert loader.examine(0, 10).num_tokens_S.tolist() == first.num_tokens_S.tolist()


def test_a_shard_that_cannot_be_read_is_no_failed_sample(make_loader):
    loader, reader = make_loader(numbered(), TokensConfig())
    reader.unreadable.add(2)
    with pytest.raises(SourceError, match="block 2 cannot be read"):
        examine_all(loader)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("web", 2, 1), r"\('web', 2, 1\) was asked for, but its row gives 1 samples"),
        (("web", 2, -1), "its row gives 1 samples"),
        (("web", NUM_ROWS, 0), "was asked for ordinal 40, but has 40"),
        (("code", 2, 0), "of source 'web' was asked for a sample of 'code'"),
    ],
)
def test_a_sample_that_does_not_exist_is_refused(make_loader, asked, message):
    loader, _ = make_loader(numbered(), TokensConfig())
    with pytest.raises(EngineError, match=message):
        loader.fetch([SampleId(*asked)])


def test_a_transform_that_changes_its_mind_is_found_out(make_loader):
    calls = []

    def once(sample):
        calls.append(sample)
        if len(calls) > 1:
            raise RuntimeError("not again")
        return sample

    loader, _ = make_loader(numbered(1), FunctionConfig(function=once), TokensConfig())
    loader.examine(0, 1)
    loader.release(1)
    with pytest.raises(EngineError, match="gave samples when it was examined and fails now: RuntimeError: not again"):
        loader.fetch([SampleId("web", 0, 0)])


@pytest.mark.parametrize(("start", "num_rows"), [(-1, 4), (0, 0)])
def test_a_question_without_meaning_is_refused(make_loader, start, num_rows):
    loader, _ = make_loader(numbered(), TokensConfig())
    with pytest.raises(ValueError, match="examine needs start >= 0 and num_rows >= 1"):
        loader.examine(start, num_rows)


def test_arrays_of_the_payload_are_the_loaders_own(make_loader):
    shared = np.array([1, 2, 3], dtype=np.int32)
    loader, _ = make_loader([{"ids": shared}], TokensConfig())
    loader.examine(0, 1)
    shared[:] = 0
    assert contents(loader.fetch([SampleId("web", 0, 0)]))[0][1] == [1, 2, 3]


def test_two_threads_examine_and_a_third_fetches_while_rows_are_transformed(make_loader):
    """What transforms wait for holds up no other use of the loader, and nothing differs."""
    gate, inside = threading.Event(), threading.Semaphore(0)
    transforms = (FunctionConfig(function=lambda sample: (inside.release(), gate.wait(30), sample)[2]), TokensConfig())
    calm, _ = make_loader(numbered(), TokensConfig())
    expected = examine_all(calm, step=8)
    loader, _ = make_loader(numbered(), *transforms)
    gate.set()
    first = loader.examine(0, 8)
    ids = ids_of([first])
    gate.clear()
    for _ in range(8):
        inside.acquire()
    found = {}

    def examine(start):
        found[start] = loader.examine(start, 8)

    threads = [threading.Thread(target=examine, args=(start,)) for start in (8, 16)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=30)
    assert contents(loader.fetch(ids)) == contents(calm.fetch(ids))
    loader.release(4)
    assert loader._buffer.get(0) is None
    gate.set()
    for thread in threads:
        thread.join(30)
    for start, table in found.items():
        assert table.num_tokens_S.tolist() == expected[start // 8].num_tokens_S.tolist()
    assert loader.counts()["rows_examined"] == 24


def test_what_is_to_go_while_the_loader_reads_goes_when_it_has_and_the_reader_waits_for_nobody(make_loader):
    loader, _ = make_loader(numbered(), TokensConfig())
    ids = ids_of([loader.examine(0, 8)])
    with loader._alone():
        loader.release(8)
        assert loader._buffer.nbytes > 0
    assert loader._buffer.nbytes == 0
    loader.fetch(ids)
    assert loader._buffer.nbytes > 0, "said once, it holds once"
