import json
from dataclasses import replace

import pytest

from msd.client import RankClient
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.errors import ClosedError, ConfigError, StateError


class ThreeSteps:
    """A transport that serves steps 0, 1, 2 and then the end."""

    mesh = Mesh.of(dp=2)

    def __init__(self) -> None:
        self.step = 0
        self.num_disconnects = 0

    def connect(self, rank: int) -> int:
        self.mesh.check_rank(rank)
        return 1

    def take(self, rank: int, session: int) -> RankBatch | None:
        if self.step == 3:
            return None
        self.step += 1
        return RankBatch(
            step=self.step - 1,
            rank=rank,
            sample_ids=[],
            microbatches=[],
            num_valid_tokens=0,
            global_num_valid_tokens=0,
            sequence_length=8,
        )

    def position(self, rank: int, session: int) -> str:
        return json.dumps({"step": self.step})

    def stands(self, rank: int, session: int) -> tuple[int, int]:
        return 0, self.step

    def load(self, rank: int, session: int, state: dict, *, force: bool = False) -> None:
        self.step = state["step"]

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        self.said = losses

    def disconnect(self, rank: int, session: int) -> None:
        self.num_disconnects += 1


def test_iteration_ends_with_the_data():
    assert [batch.step for batch in RankClient(ThreeSteps(), rank=0)] == [0, 1, 2]


def test_figures_of_the_last_batch_are_flat_numbers_by_name():
    class Documents(ThreeSteps):
        def take(self, rank: int, session: int) -> RankBatch | None:
            batch = super().take(rank, session)
            ids = [("web", 1, 0), ("books", 4, 0), ("web", 2, 0)]
            return batch and replace(batch, sample_ids=ids, num_valid_tokens=5, global_num_valid_tokens=9)

    client = RankClient(Documents(), rank=0)
    assert client.metrics() == {}
    list(client)
    found = client.metrics()
    assert found.pop("msd/wait_s") <= found.pop("msd/waited_s") == client.waited_s
    assert found == {
        "msd/step": 2,
        "msd/documents": 3,
        "msd/valid_tokens": 5,
        "msd/global_valid_tokens": 9,
        "msd/documents/books": 1,
        "msd/documents/web": 2,
    }


def test_iterating_again_goes_on_where_the_client_stands():
    client = RankClient(ThreeSteps(), rank=1)
    assert next(iter(client)).step == 0
    assert [batch.step for batch in client] == [1, 2]
    assert list(client) == []


def test_a_state_is_legal_before_the_first_batch_and_twice_in_a_row():
    client = RankClient(ThreeSteps(), rank=0)
    assert client.state_dict() == client.state_dict() == {"step": 0}
    next(client)
    client.load_state_dict({"step": 0})
    assert [batch.step for batch in client] == [0, 1, 2]


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(StateError, match="got str"):
        RankClient(ThreeSteps(), rank=0).load_state_dict("step 3")


def test_a_rank_outside_the_mesh_is_refused():
    with pytest.raises(ConfigError, match="rank 2 is outside the mesh of 2 ranks"):
        RankClient(ThreeSteps(), rank=2)


def test_a_closed_client_says_so_and_closes_once():
    transport = ThreeSteps()
    with RankClient(transport, rank=0) as client:
        next(client)
    client.close()
    assert transport.num_disconnects == 1
    with pytest.raises(ClosedError, match="rank 0 is closed"):
        next(client)
