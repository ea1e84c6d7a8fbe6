"""An image travels once: to the rank that encodes it, however many ranks share its row."""

import pytest

import msd
from msd.client.link.batches import encode
from msd.testing.scenarios import SCENARIOS

STEPS = 4


def received(strategy: str, mesh: dict[str, int]):
    """Return the batches of every rank, the plans, and the bytes on the link."""
    with msd.start(SCENARIOS["hybrid"](mesh=mesh, strategy=strategy), runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
        batches = [next(client) for _ in range(STEPS) for client in clients]
        plans = [engine.plan(step) for step in range(STEPS)]
    return batches, plans, sum(encode(batch).nbytes for batch in batches)


def pixels(batches) -> int:
    rows = [row.images for batch in batches for row in batch.microbatches if row.images is not None]
    shares = [share for batch in batches for share in batch.encoder]
    return sum(images.pixels.nbytes for images in (*rows, *shares))


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}, {"pp": 2, "dp": 2}], ids=str)
def test_pixels_cross_the_link_once_where_rows_would_take_them_to_every_rank_that_shares_them(mesh):
    hybrid, plans, hybrid_bytes = received("vlm_hybrid", mesh)
    rows, _, row_bytes = received("vlm_backbone", mesh)
    once = sum(int(plan.num_patches_D.sum()) for plan in plans) * 3 * 4 * 4
    assert pixels(hybrid) == once
    assert pixels(rows) == 2 * once
    assert hybrid_bytes < row_bytes - once / 2
    for batch in hybrid:
        assert all(row.images is None or len(row.images.grids) > 0 for row in batch.microbatches)
        assert all(row.images is None or row.images.pixels.size == 0 for row in batch.microbatches)


def test_a_batch_and_the_run_say_what_is_encoded():
    with msd.start(SCENARIOS["hybrid"](), runtime="local") as engine:
        batch = next(engine.client(rank=1))
        plan = engine.plan(0)
        assert engine.stats()["encoder_imbalance"] == pytest.approx(plan.report.encoder.imbalance)
    assert repr(batch).endswith(f", encodes {(plan.encoder.rank_I == 1).sum()} images>")
    with msd.start(SCENARIOS["image-text"](), runtime="local") as engine:
        assert "encodes" not in repr(next(engine.client(rank=1)))
        assert "encoder_imbalance" not in engine.stats()


def test_a_rank_that_encodes_nothing_in_a_round_has_patches_of_the_right_size():
    batches, _, _ = received("vlm_hybrid", {"dp": 4, "tp": 2})
    shares = [share for batch in batches for share in batch.encoder]
    assert {share.pixels.shape[1] for share in shares} == {48}
    assert any(len(share.grids) == 0 for share in shares)
