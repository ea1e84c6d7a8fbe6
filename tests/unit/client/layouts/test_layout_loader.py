"""`msd.torch.DataLoader(layout=...)`: what an item is, and what is a tensor of it."""

import collections
import pickle
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from layout_batches import GOLDEN, golden_batch  # noqa: E402

from msd import layouts  # noqa: E402
from msd.client.client import RankClient  # noqa: E402
from msd.client.torch import DataLoader  # noqa: E402
from msd.core.batch import EncoderShare, RankBatch  # noqa: E402
from msd.core.mesh import Mesh  # noqa: E402
from msd.errors import ConfigError  # noqa: E402

Pair = collections.namedtuple("Pair", "inputs targets")


class OneStep:
    """A run of one step, the batch of the golden file: an engine and its transport."""

    mesh = Mesh.of(dp=2)

    def __init__(self) -> None:
        self.is_taken = False

    def client(self, rank: int = 0) -> RankClient:
        return RankClient(self, rank=rank)

    def connect(self, rank: int) -> int:
        return 1

    def take(self, rank: int, session: int) -> RankBatch | None:
        first, self.is_taken = not self.is_taken, True
        return golden_batch() if first else None

    def position(self, rank: int, session: int) -> str:
        return "{}"

    def load(self, rank: int, session: int, state: dict, *, force: bool = False) -> None:
        raise AssertionError(state)

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        self.said = losses

    def disconnect(self, rank: int, session: int) -> None:
        pass


def step_of(layout, **options):
    [step] = DataLoader(OneStep(), rank=1, layout=layout, **options)
    return step


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    return [found for item in value for found in tensors_in(item)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("name", layouts.NAMED)
def test_a_named_layout_gives_a_step_as_a_list_of_tensors(name):
    step = step_of(name)
    assert isinstance(step, layouts.LaidOutBatch)
    assert (step.step, len(step), step.global_num_valid_tokens) == (3, 3, 40)
    made = tensors_in(layouts.NAMED[name](golden_batch()))
    assert made == []
    dtypes = {str(tensor.dtype) for tensor in tensors_in(step)}
    assert dtypes <= {"torch.int64", "torch.int32", "torch.float32", "torch.bool"}
    assert all(not isinstance(value, np.ndarray) for value in _leaves(step))


def _leaves(value):
    if isinstance(value, dict):
        return _leaves(list(value.values()))
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list | tuple) else [value]


def test_hugging_face_gets_keyword_arguments():
    first, *_ = step_of("hf")
    assert first["input_ids"].tolist() == GOLDEN["hf"][0]["input_ids int64"]
    assert (first["cu_seq_lens_q"].dtype, first["max_length_q"]) == (torch.int32, 5)


def test_torchtitan_gets_pairs():
    (inputs, labels), *_ = step_of("torchtitan")
    assert inputs["positions"].shape == labels.shape == (16,)


def test_tensors_of_a_layout_move_to_a_device():
    assert {tensor.device.type for tensor in tensors_in(step_of("torchtitan", device="meta"))} == {"meta"}


def test_what_a_rank_encodes_is_told_as_the_exchange_takes_it(monkeypatch):
    share = EncoderShare(
        pixels=np.zeros((4, 12), np.uint8),
        grids=np.array([[1, 2, 2]], np.int32),
        num_embeddings=1,
        ranks=np.array([0, 1], np.int32),
        returns=np.array([1, 0], np.int32),
        send_counts=np.array([0, 1], np.int32),
        send_rows=np.array([0], np.int32),
        receive_counts=np.array([0, 2], np.int32),
        slots=np.array([0, 1], np.int32),
        positions=np.array([3, 5], np.int32),
    )
    batch = replace(golden_batch(), encoder=[share])
    monkeypatch.setattr(OneStep, "take", lambda self, rank, session: batch)
    [laid_out] = DataLoader(OneStep(), rank=1, layout="hf", steps=1)
    [plain] = DataLoader(OneStep(), rank=1, steps=1)
    [found], [wanted] = laid_out.encoder, plain.encoder
    assert list(found) == list(wanted)
    assert (found["ranks"], found["send_counts"], found["receive_counts"]) == ([0, 1], [0, 1], [0, 2])
    assert (found["positions"].dtype, found["positions"].tolist()) == (torch.int64, [3, 5])
    assert found["pixels"].dtype == wanted["pixels"].dtype == torch.uint8
    [moved] = DataLoader(OneStep(), rank=1, layout="hf", device="meta", steps=1)
    assert moved.encoder[0]["pixels"].device.type == "meta"


def test_a_step_in_a_layout_passes_through_the_loader_of_torch():
    outer = torch.utils.data.DataLoader(DataLoader(OneStep(), rank=1, layout="flash"), batch_size=None, num_workers=0)
    [step] = outer
    assert (step.step, step.num_valid_tokens, len(step)) == (3, 16, 3)
    assert step[0]["cu_seqlens_q"].tolist() == [0, 3, 4, 8, 13, 16]


def test_a_step_in_a_layout_may_be_sent_to_another_process():
    step = pickle.loads(pickle.dumps(layouts.hf(golden_batch())))
    assert (step.step, len(step)) == (3, 3)


def test_a_function_gives_the_item_with_tensors_for_its_arrays():
    def mine(batch: RankBatch):
        row = batch.microbatches[0]
        return Pair({"ids": row.input_ids, "name": "web"}, (row.labels, [np.array(["a", "b"])], 7))

    item = step_of(mine)
    assert isinstance(item, Pair)
    assert item.inputs["ids"].dtype == torch.int32
    assert item.inputs["name"] == "web"
    labels, [letters], seven = item.targets
    assert (labels.tolist()[0], letters.tolist(), seven) == (12, ["a", "b"], 7)


def test_a_function_may_give_anything():
    assert step_of(lambda batch: batch.step) == 3
    assert step_of(lambda batch: None) is None


def test_what_fails_in_a_layout_names_it_and_the_step():
    def broken(batch: RankBatch):
        raise KeyError("lengths")

    with pytest.raises(KeyError) as caught:
        step_of(broken)
    assert caught.value.__notes__ == ["while layout broken laid out step 3 of rank 1"]


def test_an_unknown_layout_is_refused_before_a_rank_connects():
    class NoRun(OneStep):
        def connect(self, rank: int) -> int:
            raise AssertionError("connected")

    with pytest.raises(ConfigError, match="no layout 'huggingface'"):
        DataLoader(NoRun(), rank=0, layout="huggingface")
