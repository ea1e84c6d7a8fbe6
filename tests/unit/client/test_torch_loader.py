"""`msd.torch.DataLoader` over a run of three steps made by hand."""

import copy
import itertools
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from msd.client.client import RankClient  # noqa: E402
from msd.client.torch import DataLoader, TorchBatch  # noqa: E402
from msd.core.batch import TOKEN_FIELDS, BatchMarker, Microbatch, RankBatch, RowImages  # noqa: E402
from msd.core.mesh import Mesh  # noqa: E402
from msd.core.state import unwrapped  # noqa: E402
from msd.errors import ClosedError, ConfigError, StateError  # noqa: E402

NUM_STEPS = 3


def row(step: int, *, images: RowImages | None = None) -> Microbatch:
    return Microbatch(
        num_tokens=4,
        input_ids=np.array([step, 2, 3, 0], dtype=np.int32),
        labels=np.array([2, 3, -100, -100], dtype=np.int32),
        position_ids=np.array([0, 1, 2, 0], dtype=np.int32),
        segment_ids=np.array([1, 1, 1, 0], dtype=np.int32),
        loss_mask=np.array([1, 1, 0, 0], dtype=np.float32),
        cu_seqlens=np.array([0, 3], dtype=np.int32),
        cu_seqlens_padded=np.array([0, 4], dtype=np.int32),
        max_seqlen=3,
        images=images,
    )


def photo() -> RowImages:
    return RowImages(
        pixels=np.full((4, 12), 200, dtype=np.uint8),
        grids=np.array([[1, 2, 2]], dtype=np.int32),
        owner=np.zeros(1, dtype=np.int32),
        starts=np.zeros(1, dtype=np.int32),
    )


def rank_batch(step: int, rank: int = 0, images: RowImages | None = None) -> RankBatch:
    return RankBatch(
        step=step, rank=rank, sample_ids=[("web", step, 0)], microbatches=[row(step, images=images)],
        num_valid_tokens=2, global_num_valid_tokens=4, sequence_length=4,
    )  # fmt: skip


class ThreeSteps:
    """A run of three steps whose state is the next step: an engine and its transport."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.next_step = dict.fromkeys(range(mesh.world_size), 0)
        self.released: list[int] = []

    def client(self, rank: int = 0) -> RankClient:
        return RankClient(self, rank=rank)

    def connect(self, rank: int) -> int:
        return 1

    def take(self, rank: int, session: int) -> RankBatch | None:
        step = self.next_step[rank]
        if step == NUM_STEPS:
            return None
        self.next_step[rank] = step + 1
        return rank_batch(step, rank)

    def position(self, rank: int, session: int) -> str:
        return f'{{"next": {self.next_step[rank]}}}'

    def load(self, rank: int, session: int, state: dict, *, force: bool = False) -> None:
        self.next_step[rank] = state["next"]

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        self.said = losses

    def disconnect(self, rank: int, session: int) -> None:
        self.released.append(rank)


@pytest.fixture
def engine() -> ThreeSteps:
    return ThreeSteps(Mesh.of(dp=2))


def test_items_are_the_steps_of_one_rank_in_order(engine):
    batches = list(DataLoader(engine, rank=1))
    assert [(batch.step, batch.rank) for batch in batches] == [(0, 1), (1, 1), (2, 1)]
    assert batches[2].sample_ids == [("web", 2, 0)]
    assert (batches[0].num_valid_tokens, batches[0].global_num_valid_tokens) == (2, 4)
    assert batches[0].sequence_length == 4


def test_fields_have_the_dtypes_that_torch_functions_take(engine):
    [fields] = next(iter(DataLoader(engine, rank=0))).microbatches
    dtypes = {name: value.dtype for name, value in fields.items() if isinstance(value, torch.Tensor)}
    integers = ("input_ids", "labels", "position_ids", "segment_ids")
    assert dtypes == dict.fromkeys(integers, torch.int64) | {
        "loss_mask": torch.float32, "cu_seqlens": torch.int32, "cu_seqlens_padded": torch.int32,
    }  # fmt: skip
    assert (fields["max_seqlen"], fields["images"]) == (3, None)
    logits = torch.zeros(4, 10)
    assert torch.nn.functional.cross_entropy(logits, fields["labels"], reduction="sum") > 0


def test_arrays_whose_dtype_stays_are_not_copied():
    batch = rank_batch(0, images=photo())
    [fields] = TorchBatch.of(batch).microbatches
    source = batch.microbatches[0]
    assert fields["loss_mask"].data_ptr() == source.loss_mask.ctypes.data
    assert fields["cu_seqlens"].data_ptr() == source.cu_seqlens.ctypes.data
    assert fields["images"]["pixels"].data_ptr() == source.images.pixels.ctypes.data
    assert fields["images"]["pixels"].dtype == torch.uint8


def test_what_a_pipeline_stage_does_not_get_is_none_on_every_device():
    [whole] = rank_batch(0, images=photo()).microbatches
    middle = replace(whole, **dict.fromkeys([*TOKEN_FIELDS, "images"]))
    [fields] = TorchBatch.of(replace(rank_batch(0), microbatches=[middle])).to("meta").microbatches
    assert [fields[name] for name in (*TOKEN_FIELDS, "images")] == [None] * 6
    assert (fields["num_tokens"], fields["max_seqlen"]) == (4, 3)
    assert fields["cu_seqlens_padded"].device.type == "meta"


def test_images_and_texts_move_to_a_device_together():
    [fields] = TorchBatch.of(rank_batch(0, images=photo())).to("meta").microbatches
    assert {fields["input_ids"].device.type, fields["images"]["pixels"].device.type} == {"meta"}
    assert fields["max_seqlen"] == 3


def test_a_device_given_once_holds_every_batch(engine):
    batch = next(iter(DataLoader(engine, rank=0, device="meta")))
    assert batch.microbatches[0]["labels"].device.type == "meta"


def test_it_works_inside_the_loader_of_torch(engine):
    outer = torch.utils.data.DataLoader(DataLoader(engine, rank=0), batch_size=None, num_workers=0)
    batches = list(outer)
    assert [batch.step for batch in batches] == [0, 1, 2]
    assert isinstance(batches[0], TorchBatch)
    assert repr(batches[0]).startswith("<TorchBatch step=0 rank=")
    assert "tensor" not in repr(batches[0])


def test_worker_processes_are_refused_with_the_way_out(engine):
    outer = torch.utils.data.DataLoader(DataLoader(engine, rank=0), batch_size=None, num_workers=1)
    with pytest.raises(ConfigError, match="num_workers=0"):
        next(iter(outer))


@pytest.mark.parametrize("take_copy", [pickle.dumps, copy.copy])
def test_a_copy_is_refused(engine, take_copy):
    with pytest.raises(ConfigError, match="num_workers=0"):
        take_copy(DataLoader(engine, rank=0))


def test_an_iteration_ends_after_so_many_steps_and_the_next_goes_on(engine):
    loader = DataLoader(engine, rank=0, steps=2)
    assert [batch.step for batch in loader] == [0, 1]
    assert position(loader) == {"next": 2}
    assert [batch.step for batch in loader] == [2]


def test_no_batch_is_taken_ahead_of_the_loop(engine):
    loader = DataLoader(engine, rank=0)
    for batch, taken in zip(loader, itertools.count(1)):
        assert position(loader) == {"next": taken} == {"next": batch.step + 1}


def position(stateful):
    return unwrapped(json.loads(json.dumps(stateful.state_dict())))


@pytest.mark.parametrize("state", [{"next": 1}, {"msd": '{"next":1}'}], ids=["of a client", "of a loader"])
def test_a_loaded_state_moves_the_loader(engine, state):
    """Answers HF-21."""
    loader = DataLoader(engine, rank=0)
    list(loader)
    loader.load_state_dict(state)
    assert [batch.step for batch in loader] == [1, 2]


def test_whoever_keeps_only_the_iterator_can_save_and_load(engine):
    steps = iter(DataLoader(engine, rank=0, steps=2))
    next(steps)
    state = steps.state_dict()
    assert next(steps).step == 1
    steps = iter(DataLoader(engine, rank=0, steps=2))
    steps.load_state_dict(state)
    assert [batch.step for batch in steps] == [1, 2]
    assert list(steps) == []


def test_a_state_has_the_same_keys_at_every_position(engine):
    loader = DataLoader(engine, rank=0)
    keys = [list(loader.state_dict())]
    keys += [list(loader.state_dict()) for _ in loader]
    assert keys == [["msd"]] * 4


def test_a_text_that_is_no_state_is_refused(engine):
    with pytest.raises(StateError, match="the text of the state is no JSON"):
        DataLoader(engine, rank=0).load_state_dict({"msd": "{"})


def test_a_closed_loader_is_refused(engine):
    with DataLoader(engine, rank=0) as loader:
        pass
    with pytest.raises(ClosedError, match="rank 0 is closed"):
        next(iter(loader))


def test_a_marker_batch_has_no_microbatches_but_says_who_sends_them():
    marker = BatchMarker(root=0, shapes={"input_ids": ((4,), "int32")})
    held = RankBatch(
        step=0, rank=1, sample_ids=[], microbatches=[], markers=[marker],
        num_valid_tokens=2, global_num_valid_tokens=4, sequence_length=4,
    )  # fmt: skip
    batch = TorchBatch.of(held)
    assert (batch.microbatches, batch.markers) == ([], [marker])


def test_the_rank_comes_from_the_environment(engine, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert DataLoader(engine).rank == 1


@pytest.mark.parametrize("given", ["one", "-1", ""])
def test_an_environment_rank_that_is_no_number_is_refused(engine, monkeypatch, given):
    monkeypatch.setenv("RANK", given)
    with pytest.raises(ConfigError, match="RANK must be a number"):
        DataLoader(engine)


def test_an_unsaid_rank_is_refused_where_there_are_several(engine, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="pass rank="):
        DataLoader(engine)
    assert DataLoader(ThreeSteps(Mesh.of(dp=1))).rank == 0


def test_a_client_is_taken_as_it_is(engine):
    assert DataLoader(engine.client(rank=1)).rank == 1
    with pytest.raises(ConfigError, match="the client given is of rank 1, not 0"):
        DataLoader(engine.client(rank=1), rank=0)


@pytest.mark.parametrize("given", [None, 7, {"sources": {}}])
def test_anything_but_an_engine_address_or_client_is_refused(given):
    with pytest.raises(ConfigError, match="takes an engine, its address or a client"):
        DataLoader(given, rank=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": -1}, "steps must be None or at least 0, got -1"),
        ({"steps": "3"}, r"steps must be an integer, got '3' \(str\)"),
        ({"steps": 1.5}, "steps must be an integer"),
        ({"device": "cudaa"}, "device='cudaa' cannot be used: "),
        ({"device_mesh": 5}, "a device mesh is a torch.distributed.DeviceMesh, got int"),
        ({"layout": []}, "there is no layout"),
    ],
)
def test_an_argument_that_means_nothing_is_refused_before_the_first_batch(engine, arguments, said):
    with pytest.raises(ConfigError, match=said):
        DataLoader(engine, rank=0, **arguments)


def test_pinned_memory_needs_an_accelerator(engine, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs an accelerator"):
        DataLoader(engine, rank=0, pin_memory=True)
