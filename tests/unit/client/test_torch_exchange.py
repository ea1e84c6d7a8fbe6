"""The exchange of embeddings as one process sees it; `tests/integration/test_embedding_exchange.py` has several."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from link_run import make_batch, make_share  # noqa: E402

from msd.client.torch import EmbeddingExchange, TorchBatch  # noqa: E402
from msd.errors import ConfigError  # noqa: E402


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def share(**changes):
    """Three embeddings, of which the rank's own row needs the second twice and the first."""
    fields = {
        "num_embeddings": 3, "ranks": [0], "returns": [1], "send_counts": [3], "receive_counts": [3],
        "send_rows": torch.tensor([1, 0, 1]),
    }  # fmt: skip
    return fields | changes


def test_a_rank_alone_receives_its_own_and_gradients_sum_up(one_process):
    embeddings = torch.arange(6.0, dtype=torch.float64).view(3, 2).requires_grad_()
    received = EmbeddingExchange()(embeddings, share())
    assert received.tolist() == [[2.0, 3.0], [0.0, 1.0], [2.0, 3.0]]
    received.backward(torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]], dtype=torch.float64))
    assert embeddings.grad.tolist() == [[10.0, 20.0], [101.0, 202.0], [0.0, 0.0]]


def test_a_round_without_an_image_takes_part_forward_and_backward(one_process):
    nothing = share(num_embeddings=0, send_counts=[0], receive_counts=[0], send_rows=torch.empty(0, dtype=torch.long))
    embeddings = torch.empty(0, 2, requires_grad=True)
    received = EmbeddingExchange()(embeddings, nothing)
    assert received.shape == (0, 2)
    received.sum().backward()
    assert embeddings.grad.shape == (0, 2)


@pytest.mark.parametrize("shape", [(2, 2), (3,), (3, 2, 2)])
def test_other_embeddings_than_those_of_the_share_are_refused(one_process, shape):
    with pytest.raises(ConfigError, match=r"takes embeddings of shape \[3, dim\], one for each placeholder .*, got \["):
        EmbeddingExchange()(torch.zeros(shape), share())


def test_a_group_of_other_ranks_is_refused_with_the_one_to_make(one_process):
    with pytest.raises(ConfigError, match=r"group has ranks \[0\], the exchange is among \[0, 2\]; pass .*new_group"):
        EmbeddingExchange()(torch.zeros(3, 2), share(ranks=[0, 2]))
    with pytest.raises(ConfigError, match=r"among \[0, 1, 2, 3, 4, 5, 6, 7\] and 4 more"):
        EmbeddingExchange()(torch.zeros(3, 2), share(ranks=list(range(12))))


def test_shares_come_as_tensors_with_counts_as_numbers():
    given = make_share(4, images=3, ranks=2)
    (found,) = TorchBatch.of(make_batch(0, encoder=[given])).encoder
    assert found["pixels"].dtype == torch.uint8
    assert found["grids"].dtype == torch.int32
    assert found["num_embeddings"] == 3
    for name in ("ranks", "returns", "send_counts", "receive_counts"):
        assert found[name] == getattr(given, name).tolist()
    for name in ("send_rows", "slots", "positions"):
        assert found[name].dtype == torch.int64
        assert found[name].tolist() == getattr(given, name).tolist()


def test_a_batch_moves_with_what_it_encodes():
    batch = TorchBatch.of(make_batch(0, encoder=[make_share(4)]))
    moved = batch.to("meta")
    assert moved.encoder[0]["pixels"].device.type == "meta"
    assert moved.encoder[0]["send_rows"].device.type == "meta"
    assert moved.encoder[0]["send_counts"] == batch.encoder[0]["send_counts"]
    assert batch.encoder[0]["pixels"].device.type == "cpu"
