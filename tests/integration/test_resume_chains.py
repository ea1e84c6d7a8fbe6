"""Chains of saves and resumes equal one run: after any number of steps, on any mesh, wherever who prepares what.

Scenarios hold what makes a position hard: samples that wait, rows cut over steps, filters, rows that fail, nested
weights that move, sources that end, images, sources of a handful of rows.
"""

import json
import random
from functools import cache

import pytest

from msd.errors import StateError
from msd.runtime.local import LocalEngine
from msd.runtime.simulated import SimulatedEngine
from msd.testing.scenarios import SCENARIOS, digest

STEPS = 16
HOME = {"dp": 4}
MESHES = [{"dp": 2}, {"dp": 3}, {"dp": 8}, {"dp": 1}, HOME, {"dp": 2, "tp": 2}, {"dp": 4, "cp": 2}, {"pp": 2, "dp": 3}]
PACKINGS = ["best_fit", "first_fit_decreasing", "concat", "none"]


def config(scenario, packing, mesh=HOME):
    # What a mesh with context parallelism needs must hold from the start.
    batch = {"global_batch_size": 24, "document_multiple": 8}
    changes = {"batch": batch, "mesh": mesh, "num_microbatches": 1}
    if scenario == "hybrid":
        changes["balance"] = {"method": "lpt"}
    return SCENARIOS[scenario](packing=packing, **changes)


@cache
def undisturbed(scenario, packing):
    """By step: the samples of the step, and what rank 0 of the home mesh receives."""
    with LocalEngine(config(scenario, packing)) as engine:
        return taken(engine, [engine.client(rank) for rank in range(4)], STEPS)


def taken(engine, clients, count):
    """Take steps with every rank: [(step, samples of the step, digest of rank 0)], fewer where the run ends."""
    found = []
    mesh = engine.mesh
    # Ranks that differ in the other axes hold what another rank holds.
    distinct = [
        rank for rank in range(mesh.world_size) if not any(mesh.coordinate(rank)[a] for a in ("pp", "cp", "tp"))
    ]
    for _ in range(count):
        batches = [next(client, None) for client in clients]
        if batches[0] is None:
            assert batches == [None] * len(clients), "all ranks end on the same step"
            break
        assert {batch.step for batch in batches} == {batches[0].step}
        ids = sorted(sample_id for rank in distinct for sample_id in batches[rank].sample_ids)
        found.append((batches[0].step, ids, digest(batches[0])))
    return found


def segments(draw):
    """Lengths of the pieces of a chain: some are empty, so that a state is saved as it was loaded."""
    left = STEPS
    while left:
        count = min(left, draw.choice([0, 1, 1, 2, 3, 5]))
        left -= count
        yield count


def started(scenario, packing, mesh, draw):
    """Return an engine at step 0, of a kind and shape that is drawn."""
    settings = config(scenario, packing, mesh)
    if draw.random() < 0.6:
        return LocalEngine(settings)
    shape = {
        "hosts": draw.randint(1, 4),
        "constructors": draw.randint(1, min(3, settings.place.world_size)),
        "loaders": draw.choice([1, 2, 7]),
    }
    return SimulatedEngine(settings, seed=draw.randrange(1000), **shape)


def chained(scenario, packing, seed, meshes):
    draw = random.Random(f"{scenario} {packing} {seed}")
    state, found = None, []
    for count in segments(draw):
        mesh = draw.choice(meshes)
        with started(scenario, packing, mesh, draw) as engine:
            clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
            if state is not None:
                for client in clients:
                    client.load_state_dict(json.loads(json.dumps(state)))
                assert clients[-1].state_dict() == state, "a state that was just loaded is saved as it was"
            of_piece = taken(engine, clients, count)
            states = [client.state_dict() for client in clients]
            assert all(other == states[0] for other in states), "every rank saves the same"
            state = states[0]
            found += [(*piece, mesh) for piece in of_piece]
            if len(of_piece) < count:
                break
    return found


def check(scenario, packing, seed, meshes):
    expected = undisturbed(scenario, packing)
    found = chained(scenario, packing, seed, meshes)
    assert [(step, ids) for step, ids, *_ in found] == [(step, ids) for step, ids, _ in expected]
    for (step, _, theirs, mesh), (_, _, ours) in zip(found, expected, strict=True):
        if mesh == HOME:
            assert theirs == ours, f"step {step} differs in its bytes"


@pytest.mark.parametrize(
    ("scenario", "packing"),
    [
        *((scenario, packing) for scenario in ("text", "finite", "uneven", "moving") for packing in PACKINGS),
        ("image-text", "best_fit"),
        ("image-text", "concat"),
    ],
)
def test_a_chain_of_resumes_on_any_mesh_equals_one_run(scenario, packing):
    check(scenario, packing, 1, MESHES)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scenario", ["text", "uneven", "many-sources", "hybrid"])
def test_a_chain_on_the_mesh_of_the_run_equals_it_byte_by_byte(scenario, seed):
    check(scenario, "best_fit", seed, [HOME])


def test_a_run_near_its_end_ends_where_it_would_have():
    last = undisturbed("finite", "best_fit")[-1][0]
    assert last < STEPS - 1
    for mesh in MESHES:
        with LocalEngine(config("finite", "best_fit")) as engine:
            clients = [engine.client(rank) for rank in range(4)]
            taken(engine, clients, last)
            state = clients[1].state_dict()
        with LocalEngine(config("finite", "best_fit", mesh)) as engine:
            clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
            clients[0].load_state_dict(state)
            found = taken(engine, clients, 3)
            assert [(step, ids) for step, ids, _ in found] == [undisturbed("finite", "best_fit")[-1][:2]]
            assert [next(client, None) for client in clients] == [None] * len(clients)


def test_a_mesh_that_the_multiple_does_not_serve_is_refused_with_the_number_to_set():
    auto = {"batch": {"global_batch_size": 24, "document_multiple": "auto"}, "num_microbatches": 1}
    with LocalEngine(SCENARIOS["text"](mesh=HOME, **auto)) as engine:
        state = engine.client(0).state_dict()
    with (
        LocalEngine(SCENARIOS["text"](mesh={"dp": 4, "cp": 2}, **auto)) as engine,
        pytest.raises(StateError, match=r"batch\.document_multiple: 4"),
    ):
        engine.client(0).load_state_dict(state)


@pytest.mark.parametrize("last", ["drop", "pad", "repeat_tail"])
@pytest.mark.parametrize("mesh", [{"dp": 1}, {"dp": 3}, {"dp": 8}], ids=lambda mesh: f"dp{mesh['dp']}")
def test_finite_data_ends_on_the_same_step_for_every_rank_in_any_order_of_asking(mesh, last):
    settings = SCENARIOS["finite"](mesh=mesh, num_microbatches=1, batch={"global_batch_size": 24}, last=last)
    draw = random.Random(f"{mesh} {last}")
    with LocalEngine(settings) as engine:
        # Each rank takes all it gets, one after the other: nothing is waited for between them.
        steps = {}
        ranks = list(range(engine.mesh.world_size))
        draw.shuffle(ranks)
        for rank in ranks:
            with engine.client(rank) as client:
                steps[rank] = [batch.step for batch in client]
    assert len(set(map(tuple, steps.values()))) == 1
    assert steps[0] == list(range(len(steps[0])))
    assert len(steps[0]) > 2


def test_twenty_restarts_deliver_every_row_of_an_epoch_exactly_once():
    settings = SCENARIOS["finite"](
        mesh={"dp": 2}, num_microbatches=1, batch={"global_batch_size": 2, "sequence_length": 256}, last="pad"
    ).replace(sources={name: {"max_epochs": 1, "on_exhausted": "drop"} for name in ("web", "books")})
    draw = random.Random(5)

    def run(restarts):
        delivered, state = [], None
        while True:
            with LocalEngine(settings) as engine:
                clients = [engine.client(rank) for rank in range(2)]
                if state is not None:
                    for client in clients:
                        client.load_state_dict(state)
                for _ in range(draw.randint(0, 2) if restarts else 10**6):
                    batches = [next(client, None) for client in clients]
                    if batches[0] is None:
                        return delivered
                    delivered += [sample_id for batch in batches for sample_id in batch.sample_ids]
                state, restarts = clients[0].state_dict(), restarts - 1

    whole = run(0)
    assert len(whole) == len(set(whole))
    assert {source for source, *_ in whole} == {"web", "books"}
    assert len({ordinal for source, ordinal, _ in whole if source == "web"}) == 120
    assert sorted(run(20)) == sorted(whole)
