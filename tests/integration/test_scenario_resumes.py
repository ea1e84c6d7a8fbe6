"""Failures to resume that users of other systems reported, as tests; each is named after its ID.

`docs/explanation/failures.md` lists them, with those that other tests answer.
"""

import json
from collections import Counter

import numpy as np
import pytest

import msd
from msd.core.state import canonical_json
from msd.errors import ConfigError, SourceError, StateError
from msd.runtime.local import LocalEngine
from msd.runtime.simulated import SimulatedEngine
from msd.testing.scenarios import SCENARIOS, digest

TOKENS = [{"kind": "tokens"}]


def rows(count, *, seed=1):
    draw = np.random.Generator(np.random.Philox(key=seed))
    return [{"ids": draw.integers(1, 900, int(length))} for length in draw.integers(8, 90, count)]


def source(count, **settings):
    shuffle = {"block_bytes": "4KiB", "window": 4}
    return {"rows": rows(count, seed=count), "transforms": TOKENS, "shuffle": shuffle} | settings


def once(count, **settings):
    return source(count, max_epochs=1, on_exhausted="drop", **settings)


def config(sources=None, mesh=None, **settings):
    batch = {"sequence_length": 128, "global_batch_size": 12, "last": "pad"} | settings.pop("batch", {})
    sources = sources or {"web": source(300), "books": source(70)}
    made = {"sources": sources, "batch": batch, "mesh": mesh or {"dp": 2}, "num_microbatches": 1}
    return msd.Config(**made | settings)


class Ranks:
    """All ranks of a run, which is closed at the end."""

    def __init__(self, engine):
        self.engine = engine
        self.clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.engine.close()

    def take(self, steps=None):
        """Take steps with all ranks, all that there are if None: [(step, its samples)]."""
        mesh = self.engine.mesh
        # Ranks that differ in another axis than dp hold what another one holds.
        apart = [
            rank for rank in range(mesh.world_size) if not any(mesh.coordinate(rank)[a] for a in ("pp", "cp", "tp"))
        ]
        found = []
        while steps is None or len(found) < steps:
            batches = [next(client, None) for client in self.clients]
            if batches[0] is None:
                assert batches == [None] * len(batches)
                break
            found.append((batches[0].step, sorted(one for rank in apart for one in batches[rank].sample_ids)))
        return found

    def save(self, rank=0):
        """Return the state of a rank as it comes back from a file."""
        return json.loads(json.dumps(self.clients[rank].state_dict()))

    def load(self, state):
        for client in self.clients:
            client.load_state_dict(state)


def local(settings):
    return Ranks(LocalEngine(settings))


def run(settings, steps=None):
    with local(settings) as ranks:
        return ranks.take(steps)


def chain(settings, counts):
    """Runs one after another, each from the state that the one before saved: the steps of all."""
    found, state = [], None
    for count in counts:
        with local(settings) as ranks:
            if state is not None:
                ranks.load(state)
            found += ranks.take(count)
            state = ranks.save()
    return found


def state_after(settings, steps):
    with local(settings) as ranks:
        ranks.take(steps)
        return ranks.save()


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}, {"pp": 2, "dp": 2}], ids=str)
def test_EN_14_whichever_rank_saves_saves_the_same_and_any_of_them_goes_on(mesh):
    settings = config(mesh=mesh, batch={"document_multiple": 4})
    whole = run(settings, 5)
    with local(settings) as ranks:
        ranks.take(3)
        states = [ranks.save(rank) for rank in range(4)]
    assert all(state == states[0] for state in states)
    with local(settings) as ranks:
        ranks.load(states[3])
        assert ranks.take(2) == whole[3:]


def test_EN_9_a_state_saved_right_after_a_load_is_that_state_whoever_has_taken_a_step_since():
    settings = config()
    state, next_state = state_after(settings, 3), state_after(settings, 4)
    for _ in range(3):
        with local(settings) as ranks:
            ranks.load(state)
            assert [ranks.save(rank) for rank in range(2)] == [state, state]
            next(ranks.clients[0])
            assert [ranks.save(rank) for rank in range(2)] == [next_state, state]
            state = ranks.save(1)


def test_EN_10_what_holds_no_position_is_refused_and_an_iterator_of_the_loader_has_one():
    pytest.importorskip("torch")
    settings = config()
    with LocalEngine(settings) as engine, msd.torch.DataLoader(engine, rank=0) as loader:
        steps = iter(loader)
        next(steps)
        assert steps.state_dict() == loader.state_dict()
        for nothing in ({}, None, {"step": 3}):
            with pytest.raises(StateError):
                steps.load_state_dict(nothing)
        state = steps.state_dict()
        after = next(steps).sample_ids
    with LocalEngine(settings) as engine, msd.torch.DataLoader(engine, rank=0) as loader:
        steps = iter(loader)
        steps.load_state_dict(state)
        assert next(steps).sample_ids == after


def test_EN_13_an_older_snapshot_is_gone_back_to_beside_newer_ones_and_what_is_not_there_is_said(tmp_path):
    settings = config(checkpoint={"path": str(tmp_path / "ckpt"), "every": 2, "keep": 9})
    with local(settings) as ranks:
        names, whole = [], []
        for _ in range(3):
            names.append(ranks.engine.save())
            whole += ranks.take(2)
        ranks.engine.restore(names[1])
        assert ranks.take(2) == whole[2:4]
        with pytest.raises(StateError, match="it has those of steps 0, 2, 4"):
            ranks.engine.restore("snapshot-of-a-step-that-was-never-saved")
    # A run without any state begins, or does not, as it is told.
    nowhere = {"path": str(tmp_path / "none"), "every": 2}
    assert run(config(checkpoint=nowhere), 2) == whole[:2]
    with pytest.raises(ConfigError, match="resume is must"):
        LocalEngine(config(checkpoint={**nowhere, "path": str(tmp_path / "void"), "resume": "must"}))


def test_EN_13_a_state_of_which_a_part_is_missing_is_refused():
    settings = config()
    state = state_after(settings, 2)
    with local(settings) as ranks:
        for missing in state:
            with pytest.raises(StateError):
                ranks.load({key: part for key, part in state.items() if key != missing})
        assert ranks.take(1) == run(settings, 1)


def test_EN_4_a_source_that_gives_no_sample_ends_the_run_by_name_instead_of_being_read_for_ever():
    settings = config({"web": source(40), "void": source(30, transforms=[lambda sample: None, *TOKENS])})
    with pytest.raises(SourceError, match="void"):
        run(settings, 5)


def test_MS_2_ranks_turn_over_epochs_without_waiting_for_one_another():
    settings = config({"web": source(40)})
    with local(settings) as ranks:
        found = {0: [], 1: []}
        for rank, steps in found.items():
            for _ in range(4):
                # Another iterator each epoch, as training loops make them; the other rank has none, or has its last.
                epoch = iter(ranks.clients[rank])
                steps += [next(epoch) for _ in range(2)]
        assert [batch.step for batch in found[0]] == [batch.step for batch in found[1]] == list(range(8))
        assert max(ordinal for batch in found[0] for _, ordinal, _ in batch.sample_ids) > 3 * 40


def test_MS_6_a_state_needs_no_hint_of_who_loaded_or_took_it():
    settings = config()
    whole = run(settings, 6)
    state = state_after(settings, 4)
    with Ranks(SimulatedEngine(settings, seed=4, hosts=3, constructors=2, loaders=5)) as ranks:
        ranks.clients[1].load_state_dict(state)
        assert ranks.take(2) == whole[4:]


@pytest.mark.parametrize("loaders", [0, 1, 8])
@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_MS_8_what_packing_holds_is_in_the_state_whatever_the_number_of_loaders(method, loaders):
    settings = config(batch={"packing": {"method": method}})
    whole = run(settings, 7)
    for taken in (1, 4):
        state = state_after(settings, taken)
        engine = SimulatedEngine(settings, seed=1, loaders=loaders) if loaders else LocalEngine(settings)
        with Ranks(engine) as ranks:
            ranks.load(state)
            assert ranks.take(7 - taken) == whole[taken:]


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"dp": 3}, {"dp": 6}, {"dp": 2, "tp": 2}], ids=str)
def test_TT_3_a_run_goes_on_with_another_number_of_ranks(mesh):
    whole = run(config(), 6)
    state = state_after(config(), 3)
    with local(config(mesh=mesh)) as ranks:
        ranks.load(state)
        assert ranks.take(3) == whole[3:]


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_TT_8_images_go_on_byte_by_byte(packing):
    settings = SCENARIOS["image-text"](packing=packing)
    with local(settings) as ranks:
        client = ranks.clients[0]
        batches = [next(client) for _ in range(5)]
        assert any(row.images is not None for batch in batches for row in batch.microbatches)
        whole = [digest(batch) for batch in batches]
    with local(settings) as ranks:
        client = ranks.clients[0]
        next(client), next(client)
        state = ranks.save()
    with local(settings) as ranks:
        ranks.load(state)
        assert [digest(next(ranks.clients[0])) for _ in range(3)] == whole[2:]


@pytest.mark.parametrize("window", [1, 64])
def test_HF_1_no_row_of_a_shuffled_source_is_lost_or_doubled_wherever_it_was_interrupted(window):
    settings = config({"web": once(90, shuffle={"block_bytes": "1KiB", "window": window})})
    whole = run(settings)
    assert Counter(row for _, ids in whole for row in ids) == Counter({("web", n, 0): 1 for n in range(90)})
    for taken in range(len(whole) + 1):
        assert chain(settings, [taken, None]) == whole


def test_HF_2_a_chain_of_saves_equals_one_run():
    settings = config()
    assert chain(settings, [2] * 6) == run(settings, 12)


def test_HF_8_steps_and_rows_that_were_skipped_stay_so_after_every_resume():
    settings = config()
    whole = [ids for _, ids in run(settings, 9)]
    with local(settings) as ranks:
        ranks.take(2)
        assert ranks.engine.skip_steps(3) == 2
        state = ranks.save()
    found = []
    for _ in range(2):
        with local(settings) as ranks:
            ranks.load(state)
            found += [ids for _, ids in ranks.take(2)]
            state = ranks.save()
    assert found == whole[5:9]


def test_LD_1_a_mixture_goes_on_with_its_shares_and_what_each_source_is_owed():
    sources = {"web": source(300), "books": source(70), "code": source(150)}
    schedule = [{"step": 6, "weights": {"web": 1, "books": 1, "code": 8}}]
    settings = config(sources, mixture={"weights": {"web": 5, "books": 1, "code": 1}, "schedule": schedule})
    whole = run(settings, 10)
    assert chain(settings, [1, 3, 1, 0, 2, 3]) == whole
    tail = Counter(name for _, ids in whole[7:] for name, _, _ in ids)
    assert tail["code"] > 3 * tail["web"]


def test_LD_9_a_mixture_goes_on_with_other_ranks_loaders_and_microbatches():
    sources = {"web": source(300), "books": source(70), "code": source(150)}
    mixture = {"weights": {"web": 5, "books": 2, "code": 1}}
    whole = run(config(sources, mixture=mixture), 6)
    state = state_after(config(sources, mixture=mixture), 3)
    changed = config(sources, {"dp": 3}, mixture=mixture, num_microbatches=2)
    with Ranks(SimulatedEngine(changed, seed=2, hosts=3, loaders={"web": 3, "books": 1, "code": 2})) as ranks:
        ranks.load(state)
        assert ranks.take(3) == whole[3:]


def test_GR_6_the_remainder_of_a_window_is_there_after_a_state_within_it():
    settings = config({"web": once(97, shuffle={"block_bytes": "512B", "window": 7})}, batch={"last": "pad"})
    found = chain(settings, [1, 1, 1, None])
    assert sorted(ordinal for _, ids in found for _, ordinal, _ in ids) == list(range(97))


def test_GR_8_a_state_is_small_whatever_buffers_and_windows_hold():
    sizes = []
    for window in (1, 64):
        shuffle = {"block_bytes": "4KiB", "window": window}
        sources = {f"source-{number:03}": source(20 + number, shuffle=shuffle) for number in range(60)}
        sizes.append(len(canonical_json(state_after(config(sources, batch={"global_batch_size": 64}), 3))))
    assert max(sizes) <= 4096 + 64 * 60
    assert abs(sizes[1] - sizes[0]) < 512


def test_MX_4_the_stages_to_come_may_change_and_those_that_were_trained_stay():
    def staged(web):
        return config(mixture={"schedule": [{"step": 6, "weights": {"web": web, "books": 1}}]})

    old, new = run(staged(9), 9), run(staged(0), 9)
    assert old[:6] == new[:6]
    with local(staged(0)) as ranks:
        ranks.load(state_after(staged(9), 4))
        found = ranks.take(5)
    assert found == new[4:]
    assert found[3:] != old[7:]
