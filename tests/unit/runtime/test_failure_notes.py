"""A skipped row is not silent: the first of each source is in the log, all are in its quarantine."""

import json
import logging

import pytest

import msd
from msd.core.sample import Failure
from msd.errors import BadSampleRateError
from msd.loader.config import OnErrorConfig, SourceConfig
from msd.runtime.failures import FailureNotes


def source(**settings):
    return SourceConfig(format="memory", rows=[{"text": "a"}], on_error=OnErrorConfig(**settings))


def failure(ordinal):
    return Failure(ordinal=ordinal, reason=f"ValueError: {ordinal}", shard="a.jsonl", row=ordinal)


def test_the_first_failed_row_of_each_source_is_a_warning(caplog):
    notes = FailureNotes({"web": source(), "code": source()})
    with caplog.at_level(logging.WARNING, logger="msd"):
        notes.note("web", [failure(3), failure(4)])
        notes.note("web", [failure(5)])
        notes.note("code", [])
        notes.note("code", [failure(6)])
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "source 'web': a.jsonl row 3 failed and is skipped: ValueError: 3",
        "source 'code': a.jsonl row 6 failed and is skipped: ValueError: 6",
    ]
    assert "engine.stats()['sources']['web']['failed_by_reason']" in caplog.records[0].getMessage()
    assert "sources.web.on_error.quarantine" in caplog.records[0].getMessage()


def test_a_quarantine_lists_every_row_and_the_warning_names_it(tmp_path, caplog):
    listed = tmp_path / "bad.jsonl"
    notes = FailureNotes({"web": source(quarantine=str(listed))})
    notes.note("web", [failure(3)])
    notes.note("web", [failure(4), failure(3)])
    notes.close()
    assert [json.loads(line)["ordinal"] for line in listed.read_text().splitlines()] == [3, 4]
    assert f"listed in {listed}" in caplog.text


def test_under_policy_raise_the_error_says_it_alone(caplog):
    rows = [{"text": "fine"}, {"text": None}] * 8
    config = msd.Config(
        sources={
            "web": {
                "rows": rows,
                "on_error": {"policy": "raise"},
                "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}],
            }
        },
        batch={"sequence_length": 16, "global_batch_size": 4},
        mesh={"dp": 1},
        num_microbatches=1,
        runtime={"kind": "local"},
    )
    with msd.start(config) as engine, pytest.raises(BadSampleRateError, match="NoneType"):
        next(engine.client(rank=0))
    assert not caplog.records
    with msd.start(config.replace(sources={"web": {"on_error": {"policy": "skip"}}})) as engine:
        next(engine.client(rank=0))
        assert engine.stats()["sources"]["web"]["failed_by_reason"]["WrongType"] >= 8
    assert len(caplog.records) == 1


def test_an_engine_and_a_batch_show_themselves_in_a_line():
    rows = [{"text": f"row {n}"} for n in range(40)]
    config = msd.Config(
        sources={"web": {"rows": rows, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}},
        batch={"sequence_length": 16, "global_batch_size": 4},
        mesh={"dp": 2},
        num_microbatches=2,
        runtime={"kind": "local"},
    )
    with msd.start(config) as engine:
        assert repr(engine) == f"<LocalEngine runtime=local address={engine.address} mesh: dp=2>"
        batch = next(engine.client(rank=1))
        assert repr(batch).startswith("<RankBatch step=0 rank=1: 2 microbatches, ")
        assert repr(batch.microbatches[0]).startswith("Microbatch(tokens=16, documents=")
    assert repr(engine).endswith("closed>")
