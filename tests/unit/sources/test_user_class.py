import numpy as np
import pytest

from msd.errors import ConfigError, SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
from msd.testing.conformance import check_source


class Items:
    def __init__(self, count=50, fails_at=-1):
        self.count, self.fails_at = count, fails_at

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if number == self.fails_at:
            raise ValueError("cannot\nread")
        return {"number": number, "text": "x" * 20}


class Stream:
    made = closed = 0

    def __init__(self, count=50):
        Stream.made += 1
        self.count = count

    def __iter__(self):
        return (f"text {number}" for number in range(self.count))

    def close(self):
        Stream.closed += 1


def generate(count):
    for number in range(count):
        yield {"number": number} if number != 3 else 3


class NoSource:
    pass


class Breaks:
    def __iter__(self):
        yield "one"
        raise RuntimeError("wire cut")


def config(cls, block_bytes=200, **options):
    return ReaderConfig(format="class", cls=cls, options=options, shuffle=ShuffleConfig(block_bytes=block_bytes))


def test_a_class_with_items_has_random_access():
    blocks = check_source(config(Items), expected=[{"number": n, "text": "x" * 20} for n in range(50)])
    assert blocks.num_blocks > 5
    assert len(np.unique(blocks.unit_B)) == blocks.num_blocks


def test_a_dotted_path_and_options_make_the_class():
    settings = ReaderConfig(format=f"{__name__}:Items", options={"count": 3})
    blocks = check_source(settings, expected=[{"number": n, "text": "x" * 20} for n in range(3)])
    assert blocks.shards[0].name == f"{__name__}:Items"


def test_a_class_that_can_only_be_iterated_is_one_unit_of_texts():
    blocks = check_source(config(Stream), expected=[{"text": f"text {n}"} for n in range(50)])
    assert blocks.num_blocks > 3
    assert set(blocks.unit_B.tolist()) == {0}


def test_a_stream_goes_on_where_the_last_block_ended():
    settings = config(Stream)
    blocks = index_sources({"s": settings})["s"]
    reader = open_reader("s", settings, blocks)
    Stream.made = Stream.closed = 0
    for block in range(blocks.num_blocks):
        reader.read_block(block, np.array([0]))
    assert Stream.made == 1
    assert reader.read_block(0, np.array([1])) == [{"text": "text 1"}]
    assert Stream.made == 2
    reader.close()
    assert Stream.closed == 2


def test_a_generator_function_is_called_for_each_pass():
    expected = [{"number": n} if n != 3 else BadRow("any") for n in range(10)]
    check_source(config(generate, block_bytes=30, count=10), expected=expected)


def test_an_item_that_raises_is_a_bad_row_on_one_line():
    settings = config(Items, fails_at=2)
    reader = open_reader("s", settings, index_sources({"s": settings})["s"])
    good, bad = reader.read_block(0, np.array([0, 2]))
    assert good["number"] == 0
    assert "Items[2] raised ValueError: cannot read" in bad.reason


@pytest.mark.parametrize(
    ("cls", "options", "found"),
    [
        (Items, {"cuont": 3}, "Items could not be made with options.*cuont"),
        (NoSource, {}, "returned a NoSource, which has neither"),
        (Breaks, {}, "Breaks raised RuntimeError after 1 rows: wire cut"),
        (lambda: [5], {}, r"\[0\] is a int, not a mapping"),
        (lambda: iter([5]), {}, "row 0 of .* is a int, not a mapping"),
    ],
    ids=["options", "neither", "raises", "items", "rows"],
)
def test_what_is_wrong_names_the_class(cls, options, found):
    with pytest.raises(SourceError, match=rf"sources\.mine: .*{found}"):
        index_sources({"mine": config(cls, **options)})


def test_a_class_that_cannot_be_imported_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"sources\.mine\.cls"):
        index_sources({"mine": ReaderConfig(format="nowhere.at_all:Class")})


def test_a_stream_that_gives_fewer_rows_than_before_is_refused():
    settings = config(Stream, count=50)
    blocks = index_sources({"s": settings})["s"]
    reader = open_reader("s", config(Stream, count=20), blocks)
    with pytest.raises(SourceError, match="gave 20 rows, fewer than when it was indexed"):
        reader.read_block(blocks.num_blocks - 1, np.array([0]))
