"""Pipeline stages get only what they need: the same bytes as before, less on the link."""

import numpy as np
import pytest

import msd
from msd.client.link.batches import decode, encode
from msd.core.batch import TOKEN_FIELDS
from msd.core.stages import FIRST_FIELDS, LAST_FIELDS
from msd.planner.strategy import mix_and_pack
from msd.runtime.simulated import SimulatedEngine
from msd.testing.scenarios import image_text, same_bytes, undisturbed

MESH = {"pp": 3, "dp": 2, "cp": 2}
STEPS = 4


def steps_of(config):
    """What each rank receives, step by step."""
    with msd.start(config, runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
        return engine.mesh, [[next(client) for client in clients] for _ in range(STEPS)]


@pytest.fixture(scope="module")
def all_fields():
    return steps_of(image_text(mesh=MESH))[1]


@pytest.mark.parametrize(
    ("stages", "fields_P"),
    [
        ({}, [FIRST_FIELDS, (), LAST_FIELDS]),
        ({"per_rank": 2}, [FIRST_FIELDS, (), LAST_FIELDS]),
        ({"per_rank": 2, "style": "v"}, [(*FIRST_FIELDS, *LAST_FIELDS), (), ()]),
    ],
    ids=["1F1B", "interleaved", "v"],
)
def test_each_stage_gets_its_fields_and_they_are_those_of_a_run_with_all(all_fields, stages, fields_P):
    mesh, steps = steps_of(image_text(mesh=MESH, fields_by_stage=True, stages=stages))
    for batches, whole in zip(steps, all_fields, strict=True):
        for batch, full in zip(batches, whole, strict=True):
            fields = fields_P[mesh.coordinate(batch.rank)["pp"]]
            assert batch.sample_ids == full.sample_ids
            assert batch.num_valid_tokens == full.num_valid_tokens
            assert batch.global_num_valid_tokens == full.global_num_valid_tokens
            for row, all_of_it in zip(batch.microbatches, full.microbatches, strict=True):
                assert row.num_tokens == len(all_of_it.input_ids)
                assert np.array_equal(row.cu_seqlens_padded, all_of_it.cu_seqlens_padded)
                assert (row.images is None) == ("images" not in fields or all_of_it.images is None)
                for name in TOKEN_FIELDS:
                    assert (getattr(row, name) is None) == (name not in fields)
                    if name in fields:
                        assert np.array_equal(getattr(row, name), getattr(all_of_it, name))


def test_the_link_carries_less_to_every_stage(all_fields):
    mesh, steps = steps_of(image_text(mesh=MESH, fields_by_stage=True))
    sent = np.zeros((2, 3), dtype=np.int64)
    for held, batches in enumerate((all_fields, steps)):
        for batch in (batch for step in batches for batch in step):
            sent[held, mesh.coordinate(batch.rank)["pp"]] += encode(batch).nbytes
    full, (first, middle, last) = sent
    assert first < 0.95 * full[0]
    assert last < 0.5 * full[2]
    assert middle < 0.4 * full[1]
    assert sent[1].sum() < 0.6 * sent[0].sum()


def test_what_a_stage_received_is_what_was_sent():
    mesh, (batches, *_) = steps_of(image_text(mesh=MESH, fields_by_stage=True))
    middle = batches[mesh.rank(pp=1)]
    encoded = encode(middle)
    body = np.frombuffer(b"".join(encoded.parts), np.uint8)
    arrived = decode(encoded.header_for(middle.rank), body)
    assert [row.input_ids for row in arrived.microbatches] == [None] * len(middle.microbatches)
    assert [row.num_tokens for row in arrived.microbatches] == [row.num_tokens for row in middle.microbatches]


def test_the_simulated_engine_delivers_the_same():
    config = image_text(mesh=MESH, fields_by_stage=True)
    with SimulatedEngine(config, seed=3, hosts=2, constructors=2) as engine:
        same_bytes(undisturbed(config, STEPS), engine)


def test_stages_with_data_of_their_own_need_all_fields():
    def on_their_own(graph, context):
        return mix_and_pack(graph, context).distribute("world")

    config = image_text(mesh={"pp": 2, "dp": 2}, fields_by_stage=True, strategy=on_their_own)
    with pytest.raises(msd.ConfigError, match=r"distribute\('world'\) .* leave one of the two out"):
        next(msd.plan(config, steps=1))


def test_the_first_stage_cannot_fetch_for_those_that_need_other_fields():
    config = image_text(mesh=MESH, fields_by_stage=True, broadcast=["pp"])
    with pytest.raises(msd.ConfigError, match=r"broadcast_at\('pp'\) .* leave one of the two out"):
        next(msd.plan(config, steps=1))
