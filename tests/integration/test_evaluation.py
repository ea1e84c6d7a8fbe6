"""Held-out rows: each once, the same ones every time, whatever trains and however often."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import msd
from msd.errors import ClosedError, ConfigError

ROWS = [{"text": f"{number} comes before {number + 1}."} for number in range(400)]
TOKENIZE = [{"kind": "tokenize", "tokenizer": "bytes", "append_eos": True}]


def config(**changes):
    return msd.Config(
        sources={
            "early": {"rows": ROWS, "split": [0.0, 0.8], "transforms": TOKENIZE},
            "late": {"rows": ROWS[:150], "split": [0.3, 1.0], "transforms": TOKENIZE},
            "unused": {"rows": ROWS[:5], "transforms": TOKENIZE},
        },
        mixture={"weights": {"early": 0.5, "late": 0.5}, "schedule": [{"step": 3, "weights": {"early": 1}}]},
        batch={"sequence_length": 64, "global_batch_size": 8},
        mesh={"dp": 2},
        num_microbatches=2,
    ).replace(**changes)


def content(batches):
    return [(batch.step, batch.sample_ids, batch.microbatches[0].input_ids.tolist()) for batch in batches]


def held_out(rank=0, **changes):
    with msd.evaluation(config(), rank=rank, **changes) as evaluation:
        return content(evaluation)


def trained_on(name):
    alone = config(
        sources=dict.fromkeys({"early", "late", "unused"} - {name}),
        mixture={"weights": {name: 1}, "schedule": []},
        runtime={"kind": "local"},
    )
    with msd.start(alone) as engine:
        return {entry["row"] for step in range(40) for entry in engine.which(step)}


def test_each_row_that_training_leaves_out_comes_once():
    with msd.evaluation(config(), rank=0) as first, msd.evaluation(config(), rank=1) as second:
        ids = [sample_id for batches in (first, second) for batch in batches for sample_id in batch.sample_ids]
        engine = first._engine
        rows = {"early": set(), "late": set()}
        for source, ordinal, _ in ids:
            rows[source].add(engine.orders[source].place_of(ordinal).row)
    assert len(set(ids)) == len(ids)
    assert rows["early"] == set(range(400)) - trained_on("early")
    assert rows["late"] == set(range(150)) - trained_on("late")


def test_it_is_the_same_when_iterated_again_made_anew_or_left_in_the_middle():
    with msd.evaluation(config(), rank=1) as evaluation:
        first = content(evaluation)
        next(iter(evaluation))
        assert content(evaluation) == first
    assert len(first) > 3
    assert held_out(rank=1) == first


def test_ranks_take_the_same_number_of_steps_and_divide_the_rows():
    ours, theirs = held_out(0), held_out(1)
    assert len(ours) == len(theirs)
    assert not {id for _, ids, _ in ours for id in ids} & {id for _, ids, _ in theirs for id in ids}


def test_the_rows_are_those_of_one_rank_on_a_mesh_of_its_own():
    alone = held_out(0, mesh={"dp": 1})
    both = [held_out(rank) for rank in range(2)]
    for (_, ids, _), *shares in zip(alone, *both, strict=True):
        assert sorted(ids) == sorted(id for _, of_rank, _ in shares for id in of_rank)


def test_a_cap_takes_the_first_steps():
    assert held_out(steps=2) == held_out()[:2]
    assert len(held_out(steps=10_000)) == len(held_out())


def test_sources_and_a_split_may_be_named():
    with msd.evaluation(config(), rank=0, sources=["unused"], split=(0.0, 1.0), mesh={"dp": 1}) as evaluation:
        ids = [sample_id for batch in evaluation for sample_id in batch.sample_ids]
    assert sorted(ids) == [("unused", ordinal, 0) for ordinal in range(5)]


def test_the_rank_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with msd.evaluation(config()) as evaluation:
        assert evaluation.rank == 1
    monkeypatch.delenv("RANK")
    with pytest.raises(ConfigError, match="pass rank="):
        msd.evaluation(config())


def test_training_goes_on_beside_it_untouched():
    settings = config(runtime={"kind": "local"})
    with msd.start(settings) as engine:
        undisturbed = content(batch for batch, _ in zip(engine.client(0), range(6), strict=False))
    with msd.start(settings) as engine:
        client = engine.client(0)
        found = []
        for _ in range(6):
            found.append(next(client))
            with msd.evaluation(settings, rank=0, steps=1) as evaluation:
                assert len(list(evaluation)) == 1
        assert content(found) == undisturbed


@pytest.mark.torch
def test_torch_gets_it_as_tensors_again_and_again():
    pytest.importorskip("torch")
    with msd.torch.DataLoader(msd.evaluation(config(), rank=0)) as loader:
        found = [[item.microbatches[0]["input_ids"].tolist() for item in loader] for _ in range(2)]
    assert found[0] == found[1] == [tokens for _, _, tokens in held_out()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sources": ["unused"]}, "source 'unused' holds nothing out.*split: .0.0, 0.95."),
        ({"sources": ["web"]}, "no source 'web'"),
        ({"sources": []}, "list of names"),
        ({"steps": 0}, "1 or more"),
        ({"steps": 1.5}, "steps"),
        ({"split": (0.5, 0.2)}, "split"),
        ({"rank": 7}, "rank"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        msd.evaluation(config(), **{"rank": 0, **arguments})


def test_a_source_that_leaves_out_two_parts_must_be_told_which():
    settings = config(sources={"early": {"split": [0.2, 0.8]}})
    with pytest.raises(ConfigError, match=r"two parts out, below 0\.2 and above 0\.8"):
        msd.evaluation(settings, rank=0)


def test_a_closed_one_says_so():
    evaluation = msd.evaluation(config(), rank=0)
    evaluation.close()
    evaluation.close()
    with pytest.raises(ClosedError):
        next(evaluation)


def test_hundreds_of_them_leave_nothing_behind(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"text": "row {number}"}}\n' for number in range(200)))
    settings = msd.Config(
        sources={"rows": {"path": str(file), "split": [0.0, 0.8], "transforms": TOKENIZE}},
        batch={"sequence_length": 64, "global_batch_size": 4},
        mesh={"dp": 1},
        num_microbatches=1,
    )

    def once():
        with msd.evaluation(settings, rank=0, steps=2) as evaluation:
            for _ in evaluation:
                pass

    def held():
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir("/proc/self/fd")), threading.active_count(), resident

    for _ in range(60):
        once()
    files, threads, _ = held()
    sizes = []
    for _ in range(6):
        for _ in range(40):
            once()
        sizes.append(held()[2])
    assert held()[:2] == (files, threads)
    growth = np.polyfit(range(len(sizes)), sizes, 1)[0] / 40
    assert growth < 16 << 10, f"{growth:.0f} bytes stay of each evaluation"
