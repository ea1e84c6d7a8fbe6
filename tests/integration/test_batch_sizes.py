"""Sizes that change during a run, as the ranks see them: rows, labels, and resuming on another mesh."""

import json
import re
from collections import defaultdict

import numpy as np
import pytest

import msd
from msd.errors import StateError
from msd.runtime.simulated import SimulatedEngine
from msd.testing.scenarios import same_bytes, undisturbed

ROWS = [{"ids": list(range(100 * n + 1, 100 * n + 1 + length))} for n, length in enumerate([60, 20, 33, 64, 7, 48] * 8)]
STAGES = [{"step": 2, "global_batch_size": 16, "ramp": 2}, {"step": 5, "sequence_length": 32}]


def config(**changes) -> msd.Config:
    settings = {
        "sources": {
            "a": {"rows": ROWS, "transforms": [{"kind": "tokens"}], "max_epochs": 3, "on_exhausted": "stop"},
        },
        "batch": {"sequence_length": 64, "global_batch_size": 8, "multiple_of": 4, "schedule": STAGES},
        "mesh": {"dp": 2, "cp": 2},
        "num_microbatches": 2,
        "runtime": {"kind": "local"},
    }
    return msd.Config(**settings).replace(**changes)


def batches_of(settings: msd.Config, steps: int, state=None) -> list[list[msd.RankBatch]]:
    with msd.start(settings) as engine:
        clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
        if state is not None:
            for client in clients:
                client.load_state_dict(state)
        return [[next(client) for client in clients] for _ in range(steps)]


def delivered(steps: list[list[msd.RankBatch]]) -> dict[tuple, list[int]]:
    """Return the tokens of each sample, pieces in order; every sample here starts with a token of its own."""
    tokens = defaultdict(list)
    for batches in steps:
        for batch in batches:
            for sample_id, piece in zip(batch.sample_ids, documents(batch), strict=True):
                tokens[tuple(sample_id)] += piece
    return tokens


def documents(batch: msd.RankBatch) -> list[list[int]]:
    pieces = []
    for row in batch.microbatches:
        for start, length in zip(row.cu_seqlens_padded[:-1], np.diff(row.cu_seqlens), strict=True):
            pieces.append(row.input_ids[start : start + length].tolist())
    # A row without documents has one of length 0.
    return [piece for piece in pieces if piece]


def test_rows_have_the_sizes_of_their_step():
    rows = [
        (len(batches[0].microbatches), len(batches[0].microbatches[0].input_ids)) for batches in batches_of(config(), 7)
    ]
    # Tokens of a slice: sequences a microbatch * sequence_length / cp.
    assert rows == [(2, 64), (2, 64), (2, 64), (2, 96), (2, 128), (2, 64), (2, 64)]


def test_labels_are_counted_alike_by_plans_and_rows_in_every_size():
    for batches in batches_of(config(), 8):
        valid = sum(batch.num_valid_tokens for batch in batches)
        assert {batch.global_num_valid_tokens for batch in batches} == {valid}
        assert valid == sum(int((row.labels != -100).sum()) for batch in batches for row in batch.microbatches)


def test_what_a_shorter_stage_cuts_is_delivered_whole_and_once():
    settings = config(mesh={"dp": 2, "cp": 1}, batch={"schedule": [{"step": 1, "sequence_length": 32}], "last": "pad"})
    with msd.start(settings) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        steps = list(map(list, zip(*clients, strict=True)))
    tokens = delivered(steps)
    assert len(tokens) == 3 * len(ROWS)
    by_content = defaultdict(int)
    for held in tokens.values():
        by_content[tuple(sorted(held))] += 1
    assert by_content == {tuple(row["ids"]): 3 for row in ROWS}


def test_a_run_goes_on_on_another_mesh_with_the_multiples_it_started_with():
    first = config(batch={"multiple_of": "auto"})
    assert (first.document_multiple, first.multiple_of) == (4, 4)
    with msd.start(first) as engine:
        clients = [engine.client(rank) for rank in range(4)]
        for _ in range(3):
            for client in clients:
                next(client)
        state = json.loads(json.dumps(clients[0].state_dict()))
    whole = batches_of(first, 9)[3:]
    other = config(batch={"multiple_of": "auto"}, mesh={"dp": 1, "cp": 1})
    assert (other.document_multiple, other.multiple_of) == (1, 2)
    resumed = batches_of(other, 6, state)

    def held(batches, ranks):
        return sorted(sample_id for rank in ranks for sample_id in batches[rank].sample_ids)

    assert [held(batches, [0]) for batches in resumed] == [held(batches, [0, 2]) for batches in whole]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": {"schedule": STAGES[:1]}}, "batch.schedule is"),
        ({"batch": {"limits": {"attention": 99_999}}}, "batch.limits is .* in this run and not set in the state"),
        (
            {"mesh": {"dp": 2, "cp": 4}, "batch": {"multiple_of": 4}},
            "needs a multiple of 8; .*batch.document_multiple: 8",
        ),
    ],
)
def test_a_run_with_other_sizes_refuses_the_state_by_name(changes, message):
    with msd.start(config()) as engine:
        client = engine.client(0)
        next(client)
        state = client.state_dict()
    with msd.start(config(**changes)) as engine, pytest.raises(StateError) as refused:
        engine.client(0).load_state_dict(state)
    assert re.search(message, str(refused.value))


def test_conversations_carry_labels_where_the_assistant_speaks():
    turns = [
        {"messages": [{"role": "user", "content": "q" * n}, {"role": "assistant", "content": "a" * n}]}
        for n in range(1, 30)
    ]
    settings = config(
        sources={
            "a": None,
            "chats": {"rows": turns, "transforms": [{"kind": "chat", "tokenizer": "bytes"}], "overflow": "drop"},
        },
        batch={"sequence_length": 256, "schedule": []},
        mesh={"dp": 1, "cp": 1},
    )
    ((batch,),) = batches_of(settings, 1)
    learned = {chr(token) for row in batch.microbatches for token in row.labels[row.labels != -100].tolist()}
    assert learned == set("a<|im_end|>")
    assert batch.num_valid_tokens == sum(held.count(ord("q")) + len("<|im_end|>") for held in documents(batch))


def test_a_cluster_delivers_the_same_bytes_while_sizes_change():
    expected = undisturbed(config(), 8)
    with SimulatedEngine(config(), seed=3, hosts=2, constructors=2, loaders=2) as engine:
        same_bytes(expected, engine, seed=3)
