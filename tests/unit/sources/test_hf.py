import json

import pyarrow as pa
import pyarrow.ipc
import pytest

from msd.errors import SourceError
from msd.sources.config import ReaderConfig
from msd.sources.index import index_sources, list_shards
from msd.sources.open import resolve_format
from msd.testing.conformance import check_source

ROWS = [{"text": f"row {number}", "image": {"bytes": bytes([number]), "path": None}} for number in range(40)]


def save(folder, names=("b.arrow", "a.arrow"), **state):
    """Write what `datasets.Dataset.save_to_disk` writes, with files that do not sort as they are listed."""
    folder.mkdir(parents=True)
    share = len(ROWS) // len(names)
    for number, name in enumerate(names):
        made = pa.Table.from_pylist(ROWS[number * share : (number + 1) * share])
        with pa.ipc.new_stream(folder / name, made.schema) as writer:
            writer.write_table(made, max_chunksize=8)
    listed = {"_data_files": [{"filename": name} for name in names], **state}
    (folder / "state.json").write_text(json.dumps(listed))
    (folder / "dataset_info.json").write_text("{}")


@pytest.mark.parametrize("format", ["hf", "auto"])
def test_files_come_in_the_order_that_the_state_lists(tmp_path, format):
    save(tmp_path / "saved")
    config = ReaderConfig(format=format, path=str(tmp_path / "saved"))
    assert resolve_format("s", config) == "hf"
    blocks = check_source(config, expected=ROWS)
    assert [shard.name for shard in blocks.shards] == ["b.arrow", "a.arrow"]


def test_a_glob_of_saved_directories_is_one_source(tmp_path):
    save(tmp_path / "one")
    save(tmp_path / "two", names=("x.arrow",))
    config = ReaderConfig(format="hf", path=str(tmp_path / "*"))
    names = [shard.name for shard in list_shards("s", config)]
    assert names == ["one/b.arrow", "one/a.arrow", "two/x.arrow"]
    check_source(config, expected=ROWS + ROWS)


def test_several_splits_are_refused_naming_them(tmp_path):
    save(tmp_path / "all" / "train")
    save(tmp_path / "all" / "test")
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SourceError, match=r"splits \(test, train\).*all/test"):
        index_sources({"s": ReaderConfig(path=str(tmp_path / "all"))})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda folder: (folder / "a.arrow").unlink(), "lists a.arrow, which does not exist"),
        (lambda folder: (folder / "state.json").write_text("{"), r"state\.json cannot be read"),
        (lambda folder: (folder / "state.json").unlink(), "no state.json"),
    ],
    ids=["missing", "damaged", "none"],
)
def test_a_directory_that_is_not_whole_is_refused(tmp_path, change, found):
    save(tmp_path / "saved")
    change(tmp_path / "saved")
    with pytest.raises(SourceError, match=found):
        index_sources({"s": ReaderConfig(format="hf", path=str(tmp_path / "saved"))})


def test_an_indices_mapping_is_refused_with_the_remedy(tmp_path):
    save(tmp_path / "saved", _indices_files=[{"filename": "indices.arrow"}])
    with pytest.raises(SourceError, match="flatten_indices"):
        index_sources({"s": ReaderConfig(format="hf", path=str(tmp_path / "saved"))})


@pytest.mark.slow
def test_what_the_library_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the hf extra: pip install -e '.[hf]'")
    made = datasets.Dataset.from_list(ROWS)
    made.select(range(39, -1, -1)).save_to_disk(str(tmp_path / "saved"), num_shards=3)
    check_source({"format": "hf", "path": str(tmp_path / "saved")}, expected=ROWS[::-1])
    check_source({"format": "memory", "rows": made.select([3, 1])}, expected=[ROWS[3], ROWS[1]])
    for rows, found in (
        (datasets.DatasetDict(train=made), "with splits train; pass one"),
        (made.to_iterable_dataset(), "which has no length"),
    ):
        with pytest.raises(SourceError, match=found):
            index_sources({"s": ReaderConfig(format="memory", rows=rows)})
