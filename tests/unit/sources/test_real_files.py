"""Odd and broken real files: each is read, or refused by name; nothing crashes, nothing is lost."""

import json

import numpy as np
import pytest

from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.index import index_sources
from msd.sources.lines import is_row
from msd.sources.open import open_reader
from msd.testing.conformance import check_source, same_row

pytestmark = pytest.mark.real_data


def rows_of(config):
    blocks = index_sources({"s": config})["s"]
    reader = open_reader("s", config, blocks)
    rows = [row for block in range(blocks.num_blocks) for row in reader.read_block(block, blocks.kept_rows(block))]
    reader.close()
    return rows


def test_every_parquet_file_is_read_and_fastparquet_agrees_or_refuses(real_corpus):
    paths = sorted((real_corpus / "edge" / "parquet").glob("*.parquet"))
    num_agreed, refusals = 0, []
    for path in paths:
        check_source({"path": str(path)})
        try:
            second = rows_of(ReaderConfig(path=str(path), engine="fastparquet"))
        except SourceError as refusal:
            refusals.append(str(refusal))
            continue
        num_agreed += 1
        assert all(map(same_row, rows_of(ReaderConfig(path=str(path))), second)), path
    assert len(paths) > 10
    assert num_agreed >= 3
    assert all("engine: pyarrow" in refusal for refusal in refusals)


@pytest.mark.parametrize("folder", ["orc", "avro"])
def test_files_of_other_formats_are_refused_by_name(real_corpus, folder):
    for path in sorted((real_corpus / "edge" / folder).iterdir())[:5]:
        for chosen in ("parquet", "arrow", "webdataset", "jsonl"):
            with pytest.raises(SourceError, match="is not") as raised:
                index_sources({"s": ReaderConfig(format=chosen, path=str(path))})
            assert str(path) in str(raised.value)


def test_exactly_the_bad_lines_are_bad(real_corpus):
    path = real_corpus / "edge" / "text" / "bad_lines.jsonl"
    expected = json.loads((real_corpus / "edge" / "expected.json").read_text())
    bad = set(expected["text/bad_lines.jsonl"]["bad_line_indexes_python_json"])
    lines = path.read_bytes().split(b"\n")
    numbers = [number for number, line in enumerate(lines) if is_row(line)]
    rows = rows_of(ReaderConfig(path=str(path)))
    assert len(rows) == len(numbers)
    for number, row in zip(numbers, rows, strict=True):
        if number in bad:
            assert isinstance(row, BadRow), lines[number]
        elif number < len(lines) - 3:
            # Python takes any JSON value, and UTF-16; a row is an object in UTF-8.
            assert isinstance(row, dict) or not lines[number].lstrip().startswith(b"{"), lines[number]
    assert rows[-3] == {"id": -1, "text": "line after a stray BOM"}
    assert isinstance(rows[-2], BadRow)
    assert isinstance(rows[-1], BadRow)


def test_every_source_of_the_corpus_conforms(real_corpus):
    skipped = {"edge", "licenses", "tokenizer"}
    folders = [path for path in sorted(real_corpus.iterdir()) if path.is_dir() and path.name not in skipped]
    assert len(folders) > 3
    for folder in folders:
        blocks = index_sources({"s": ReaderConfig(path=str(folder))})["s"]
        assert blocks.num_rows > 0
        reader = open_reader("s", ReaderConfig(path=str(folder)), blocks)
        for block in {0, blocks.num_blocks // 2, blocks.num_blocks - 1}:
            asked = np.arange(blocks.num_rows_B[block])[::-7].copy()
            assert not any(isinstance(row, BadRow) for row in reader.read_block(block, asked))
        reader.close()
