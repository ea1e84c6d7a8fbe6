"""A folder of packed sequences as a source: the steps that were written are the steps that come."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import msd
from msd.errors import ConfigError
from msd.runtime.local import LocalEngine
from msd.runtime.simulated import SimulatedEngine
from msd.testing import scenarios
from msd.testing.folders import write_packed
from msd.testing.same import difference

STEPS = 7
PLAIN_MIXTURE = {
    "weights": None, "schedule": [], "clock": "step", "repetitions": None, "on_exhausted": None, "unit": "tokens",
    "mode": "explicit",
}  # fmt: skip
WRITTEN = {
    "text": scenarios.text,
    "cut over sequences": lambda: scenarios.text("concat"),
    "one sample a sequence": lambda: scenarios.text("none"),
    "on multiples": lambda: scenarios.text(batch={"document_multiple": 16}),
    "images": scenarios.image_text,
    "images, cut": lambda: scenarios.image_text("concat"),
    "images, aligned": lambda: scenarios.image_text(balance={"align": ["image"]}),
    "images, encoded apart": scenarios.hybrid,
    "a padded end": scenarios.finite,
    "a padded end, cut": lambda: scenarios.finite("concat"),
    "a repeated end": lambda: scenarios.finite(last="repeat_tail"),
    "masks": lambda: scenarios.text(sources=masked()),
    "uneven": scenarios.uneven,
    "slices": lambda: scenarios.text(mesh={"dp": 2, "tp": 2}, batch={"document_multiple": 4}),
}


def masked():
    rows = [
        {"ids": row["ids"], "learn": [int((number + place) % 3 > 0) for place in range(len(row["ids"]))]}
        for number, row in enumerate(scenarios.token_rows(9, 120, 40))
    ]
    tokens = [{"kind": "tokens", "field": "ids", "mask": "learn"}]
    return {name: {"rows": rows, "transforms": tokens} for name in ("web", "books", "code")}


def reading(config, folder, **changes):
    """The run that reads a folder back, with the batch and the mesh of the run that wrote it."""
    given = {"format": "packed", "path": str(folder), "max_epochs": 1, **changes.pop("packed", {})}
    sources = {**dict.fromkeys(config.sources), "packed": given}
    return config.replace(sources=sources, mixture=PLAIN_MIXTURE, **changes)


def taken(engine, count=None):
    """By step, what each rank receives; to the end without a count."""
    clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
    found = []
    while count is None or len(found) < count:
        batches = [next(client, None) for client in clients]
        if batches[0] is None:
            assert batches == [None] * len(clients)
            break
        found.append(batches)
    return found


def expect_same(expected, found):
    assert len(expected) == len(found)
    for step, (here, there) in enumerate(zip(expected, found, strict=True)):
        for rank, (one, other) in enumerate(zip(here, there, strict=True)):
            assert not difference(one, other), f"step {step} of rank {rank}: {difference(one, other)}"


@pytest.fixture
def text(tmp_path):
    """What a run of text gives, and its folder."""
    config = scenarios.text()
    write_packed(config, tmp_path / "text", steps=STEPS)
    with LocalEngine(config) as engine:
        return config, tmp_path / "text", taken(engine, STEPS)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_was_written_streams_as_the_very_steps(name, tmp_path):
    config = WRITTEN[name]()
    count = len(write_packed(config, tmp_path / "out", steps=None if "end" in name else STEPS))
    with LocalEngine(config) as engine:
        expected = taken(engine, count)
    with LocalEngine(reading(config, tmp_path / "out")) as engine:
        expect_same(expected, taken(engine))


def test_it_matters_that_a_written_step_is_laid_out_as_it_was(text):
    """Other balancing would place its sequences elsewhere: what was written is not balanced anew."""
    config, folder, expected = text
    with LocalEngine(reading(config, folder, balance={"method": "none"})) as engine:
        expect_same(expected, taken(engine))
    with LocalEngine(reading(config, folder, packed={"shuffle": True})) as engine:
        assert any(difference(one[0], other[0]) for one, other in zip(expected, taken(engine), strict=True))


def test_arrow_files_and_a_url_hold_the_same(text, tmp_path):
    import fsspec

    config, _, expected = text
    write_packed(config, tmp_path / "arrow", steps=STEPS, kind="arrow")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "arrow"), "/msd-packed-source", recursive=True)
    try:
        for place in (tmp_path / "arrow", "memory://msd-packed-source"):
            with LocalEngine(reading(config, place)) as engine:
                expect_same(expected, taken(engine))
    finally:
        memory.rm("/msd-packed-source", recursive=True)


def test_every_document_is_traced_to_the_sample_that_it_was(tmp_path):
    config = scenarios.text("concat")
    plans = write_packed(config, tmp_path / "out", steps=STEPS)
    with LocalEngine(reading(config, tmp_path / "out")) as engine:
        for plan in plans:
            origins = [one["origin"] for one in engine.which(plan.step)]
            assert [(one["source"], one["ordinal"], one["part"]) for one in origins] == plan.sample_ids()
            assert [one["first_token"] for one in origins] == plan.start_D.tolist()
        assert any(one["first_token"] for one in origins), "some documents are what was left of a cut sample"
        (entry, *_) = engine.which(1, rank=1)
        assert {"packed", 0} == {entry["source"], entry["part"]}
        row = pq.read_table(tmp_path / "out" / entry["shard"]).slice(entry["row"], 1).to_pylist()[0]
        assert (row["step"], row["bucket"], row["sources"][0]) == (1, 1, entry["origin"]["source"])


@pytest.mark.parametrize("start", [LocalEngine, lambda config: SimulatedEngine(config, seed=3, hosts=2, loaders=3)])
def test_a_run_that_reads_it_resumes_in_the_middle(text, start):
    config, folder, expected = text
    again = reading(config, folder)
    with start(again) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(3):
            batches = [next(client) for client in clients]
        state = json.loads(json.dumps(clients[0].state_dict()))
    assert not difference(expected[2][0], batches[0])
    with start(again) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            client.load_state_dict(state)
        found = []
        while (batch := next(clients[0], None)) is not None:
            found.append([batch, next(clients[1])])
        expect_same(expected[3:], found)


def test_a_saved_position_goes_on_over_more_ranks_with_the_sequences_that_follow(text):
    config, folder, expected = text
    with LocalEngine(reading(config, folder)) as engine:
        client = engine.client(0)
        for _ in range(3):
            next(client)
        state = client.state_dict()
    with LocalEngine(reading(config, folder, mesh={"dp": 4})) as engine:
        engine.client(0).load_state_dict(state)
        for step, batches in enumerate(taken(engine), 3):
            ordinals = {ordinal for batch in batches for _, ordinal, _ in batch.sample_ids}
            assert ordinals == set(range(8 * step, 8 * step + 8))
            assert batches[0].global_num_valid_tokens == expected[step][0].global_num_valid_tokens
        assert step == STEPS - 1


@pytest.mark.parametrize(("mesh", "size"), [({"dp": 4}, 8), ({"dp": 1}, 8), ({"dp": 2}, 4), ({"dp": 2}, 12)])
def test_another_mesh_or_batch_takes_whole_sequences_in_written_order_each_once(text, tmp_path, mesh, size):
    config, folder, expected = text
    other = reading(config, folder, mesh=mesh, batch={"global_batch_size": size, "last": "pad"})
    sequences = [
        tuple(row.input_ids[first : first + 128].tolist())
        for batches in expected
        for batch in batches
        for row in batch.microbatches
        for first in range(0, row.num_tokens, 128)
    ]
    with LocalEngine(other) as engine:
        found = taken(engine)
        given = []
        for step, batches in enumerate(found):
            held = [
                tuple(row.input_ids[first : first + 128].tolist())
                for batch in batches
                for row in batch.microbatches
                for first in range(0, row.num_tokens, 128)
            ]
            wanted = sequences[step * size : (step + 1) * size]
            empty = [(0,) * 128] * (size - len(wanted))
            assert sorted(held) == sorted([*wanted, *empty])
            given += wanted
            ordinals = sorted({ordinal for batch in batches for _, ordinal, _ in batch.sample_ids})
            assert ordinals == list(range(step * size, min((step + 1) * size, len(sequences))))
    assert given == sequences


def test_epochs_repeat_the_steps_and_shuffling_moves_whole_sequences(text):
    config, folder, expected = text
    with LocalEngine(reading(config, folder, packed={"max_epochs": 2})) as engine:
        found = taken(engine)
    assert len(found) == 2 * STEPS
    for first, second in zip(found[:STEPS], found[STEPS:], strict=True):
        assert not any(
            one.arrays["input_ids"].tobytes() != other.arrays["input_ids"].tobytes()
            for one, other in zip(first[0].microbatches, second[0].microbatches, strict=True)
        )
    with LocalEngine(reading(config, folder, packed={"shuffle": {"block_bytes": "8KiB", "window": 2}})) as engine:
        shuffled = taken(engine)

    def sequences(steps):
        return sorted(
            row.input_ids[first : first + 128].tobytes()
            for batches in steps
            for batch in batches
            for row in batch.microbatches
            for first in range(0, row.num_tokens, 128)
        )

    assert sequences(shuffled) == sequences(expected)


@pytest.mark.parametrize("packing", ["best_fit", "first_fit_decreasing", "concat", "none"])
def test_beside_other_sources_a_packed_row_keeps_a_sequence_to_itself(text, packing):
    config, folder, _ = text
    web = {"rows": scenarios.token_rows(1, 240, 20), "transforms": [{"kind": "tokens", "field": "ids"}]}
    mixed = reading(config, folder, batch={"packing": {"method": packing}}, packed={"max_epochs": None}).replace(
        sources={"web": web}, mixture={"weights": {"packed": 1, "web": 1}}
    )
    seen, drawn = [], {"packed": 0, "web": 0}
    with LocalEngine(mixed) as engine:
        for step in range(12):
            by_sequence = {}
            for one in engine.which(step):
                drawn[one["source"]] += one["length"]
                place = (one["bucket"], one["microbatch"], one["offset"] // 128)
                by_sequence.setdefault(place, []).append((one["source"], one["ordinal"], one["part"]))
            for held in by_sequence.values():
                if any(source == "packed" for source, _, _ in held):
                    assert held == [("packed", held[0][1], part) for part in range(len(held))]
                    seen.append(held[0][1])
        state = engine.client(0).state_dict()
        with LocalEngine(mixed) as other:
            other.client(0).load_state_dict(state)
    assert len(seen) == len(set(seen))
    assert 0.8 < drawn["packed"] / drawn["web"] < 1.25


def test_what_does_not_agree_is_refused_in_a_line(text, tmp_path):
    config, folder, _ = text

    def refusal(**changes):
        with pytest.raises(ConfigError) as caught, LocalEngine(reading(config, folder, **changes)):
            pass
        return str(caught.value)

    assert "set batch.sequence_length: 128" in refusal(batch={"sequence_length": 256})
    assert "set batch.document_multiple: 1" in refusal(batch={"document_multiple": 4})
    assert "leave transforms out" in refusal(packed={"transforms": [{"kind": "tokens", "field": "input_ids"}]})


def test_another_tokenizer_is_refused(tmp_path, tiny_corpus):
    from tokenizers import Tokenizer

    texts = [{"text": f"line {number} of some text"} for number in range(40)]
    config = msd.Config(
        sources={"lines": {"rows": texts, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}},
        batch={"sequence_length": 64, "global_batch_size": 2},
        mesh={"dp": 1},
        num_microbatches=1,
    )
    write_packed(config, tmp_path / "out", steps=3)
    other = str(tiny_corpus / "tokenizer.json")
    assert Tokenizer.from_file(other).get_vocab_size() > 0
    lines = {"rows": texts, "transforms": [{"kind": "tokenize", "tokenizer": other}]}
    with pytest.raises(ConfigError, match="name the one that it was written with"):
        LocalEngine(reading(config, tmp_path / "out", packed={"options": {"tokenizer": other}}))
    with pytest.raises(ConfigError, match="its tokens are of another tokenizer than those of the packed source"):
        LocalEngine(reading(config, tmp_path / "out").replace(sources={"more": lines}))
    with LocalEngine(reading(config, tmp_path / "out", packed={"options": {"tokenizer": "bytes"}})) as engine:
        assert next(engine.client(0)).num_valid_tokens


def test_a_folder_of_sequences_can_be_written_again_from_itself(text, tmp_path):
    config, folder, _ = text
    write_packed(reading(config, folder), tmp_path / "again")
    kept = ["input_ids", "labels", "document_starts", "document_lengths", "step", "bucket", "microbatch", "sequence"]
    tables = [
        [pq.read_table(path, columns=kept) for path in sorted(Path(place).glob("part-*.parquet"))]
        for place in (folder, tmp_path / "again")
    ]
    assert tables[0] == tables[1]
