"""A loader of a source without an end: whatever was admitted when, rows are those of the ledger."""

import json
import os
import time
from pathlib import Path

import pytest

from msd.core.sample import SampleId
from msd.core.unbounded import WINDOW_ROWS, UnboundedOrder
from msd.errors import SourceError
from msd.loader.admitted import RowsNotHere, seen
from msd.loader.ledgers import admitted_rows, expect_ledgers, unbounded_order
from msd.loader.loader import SourceLoader
from msd.loader.processes.recipe import ChainRecipe
from msd.loader.transforms.config import TokensConfig
from msd.sources.config import ReaderConfig


def put(folder: Path, number: int, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"ids": [number + 1, row + 1]}) + "\n" for row in range(rows))
    (folder / f"{number}.jsonl").write_text(text)
    os.utime(folder / f"{number}.jsonl", (1000 + number, 1000 + number))


def order(root: Path) -> UnboundedOrder:
    config = ReaderConfig(format="tail", path=str(root / "in"), spool=str(root / "spool"), settle_s=0, poll_s=0.01)
    return unbounded_order("web", config, seed=1, consumes=True)


def loader(found: UnboundedOrder, *, read_bytes: int = 1 << 16) -> SourceLoader:
    chain = ChainRecipe(
        source="web", transforms=[TokensConfig(field="ids")], seed=1, sequence_length=64, overflow="split"
    ).build()
    return SourceLoader(
        order=found, reader=admitted_rows(found, read_bytes=read_bytes), chain=chain, total_ordinals=None
    )


def ids(one: SourceLoader, start: int, stop: int) -> list[list[int]]:
    wanted = [SampleId("web", ordinal, 0) for ordinal in range(start, stop)]
    slab = one.fetch(wanted)
    return [slab.sample(sample).tokens_T.tolist() for sample in wanted]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, rows in enumerate((7, 30, 3, 60)):
        put(tmp_path / "in", number, rows)
    return tmp_path


def test_rows_that_are_examined_and_those_that_are_made_again_are_the_same(folder):
    one = loader(order(folder))
    table = one.examine(0, 100)
    assert (table.num_rows, table.num_parts_R.tolist()) == (100, [1] * 100)
    examined = ids(one, 0, 100)
    assert sorted(examined) == sorted([n + 1, row + 1] for n, rows in enumerate((7, 30, 3, 60)) for row in range(rows))
    another = loader(order(folder))
    assert ids(another, 40, 100) == examined[40:]
    assert ids(another, 0, 40) == examined[:40]
    one.close()
    another.close()


def test_a_table_says_of_which_admissions_its_rows_are(folder):
    found = order(folder)
    one = loader(found)
    assert [admitted[:2] for admitted in one.examine(0, 40).admissions] == [(0, 1), (7, 2), (37, 3)]
    table = one.examine(40, 10)
    assert [admitted[:2] for admitted in table.admissions] == [(40, 4)]
    expect_ledgers({"web": found}, {"sources": {"web": {"ledger": list(table.admissions[0][1:])}}})


def test_what_is_there_is_examined_and_the_rest_is_not_waited_for(tmp_path):
    put(tmp_path / "in", 0, 10)
    found = order(tmp_path)
    one = loader(found)
    assert one.examine(4, 20).num_rows == 6
    with pytest.raises(RowsNotHere, match="row 10 is not there yet: 10 rows were admitted so far") as lack:
        one.examine(10, 5)
    assert (lack.value.source, lack.value.ordinal) == ("web", 10)
    put(tmp_path / "in", 1, 2)
    while found.admissions.admit_to(11) == 10:
        time.sleep(0.005)
    assert one.examine(10, 5).num_rows == 2


def test_a_table_ends_with_its_window(tmp_path):
    put(tmp_path / "in", 0, WINDOW_ROWS + 10)
    one = loader(order(tmp_path))
    assert one.examine(WINDOW_ROWS - 5, 20).num_rows == 5
    assert one.examine(WINDOW_ROWS, 20).num_rows == 10


def test_spans_that_two_loaders_divide_are_those_of_one(tmp_path):
    put(tmp_path / "in", 0, 3 * WINDOW_ROWS)
    order(tmp_path).admissions.admit_to(3 * WINDOW_ROWS)
    whole, (first, second) = loader(order(tmp_path)), (loader(order(tmp_path)) for _ in range(2))
    expected = ids(whole, 0, 3 * WINDOW_ROWS)
    for number, one in enumerate((first, second, first)):
        start = number * WINDOW_ROWS
        one.examine(start, WINDOW_ROWS)
        assert ids(one, start, start + WINDOW_ROWS) == expected[start : start + WINDOW_ROWS]
    assert first.counts()["block_reads"] <= 4


def test_what_keeps_more_from_being_admitted_concerns_who_asks_for_more(folder):
    found = order(folder)
    one = loader(found)
    one.examine(0, 5)

    def damaged(end):
        raise SourceError("damaged")

    found.admissions.admit_to = damaged
    assert one.examine(5, 50).num_rows == 2
    with pytest.raises(SourceError, match="damaged"):
        one.examine(7, 5)


def test_what_another_host_admitted_is_seen_a_little_later():
    now, looks = [0.0], []

    def look():
        looks.append(now[0])
        return "there" if now[0] >= 1.0 else None

    def sleep(pause_s):
        now[0] += pause_s

    assert seen(look, clock=lambda: now[0], sleep=sleep) == "there"
    assert now[0] < 2.0
    assert seen(lambda: None, clock=lambda: now[0], sleep=sleep) is None
