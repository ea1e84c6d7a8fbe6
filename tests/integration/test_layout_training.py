"""Two steps of training in the layout of each trainer, with a model that keeps its conventions, as in our own."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import layout_models as models  # noqa: E402

import msd  # noqa: E402

SEQUENCE = 32
WITHOUT_MASK = functools.partial(msd.layouts.megatron, attention_mask=False)


def config_for(mesh: dict[str, int], **batch) -> msd.Config:
    """Short documents of two sources, one with a mask per token; every row has padding of each kind."""
    rng = np.random.default_rng(11)
    rows = [rng.integers(1, 250, n).tolist() for n in rng.integers(1, 30, 200)]
    return msd.Config(
        sources={
            "web": {"rows": [{"ids": row} for row in rows], "transforms": [{"kind": "tokens", "field": "ids"}]},
            "chat": {
                "rows": [{"ids": row, "mask": rng.integers(0, 2, len(row)).tolist()} for row in rows],
                "transforms": [{"kind": "tokens", "field": "ids", "mask": "mask"}],
            },
        },
        batch={"sequence_length": SEQUENCE, "global_batch_size": 8, "document_multiple": 4} | batch,
        mesh={"pp": 1, "dp": 1, "cp": 1, "tp": 1} | mesh,
        num_microbatches=2,
    )


def trained(config: msd.Config, layout, loss_of) -> tuple[list[float], torch.Tensor]:
    """Return the loss of two steps and the weights after them; each call of `loss_of` gets one slot of all cp ranks."""
    model = models.tiny_decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    with msd.start(config, runtime="local") as engine:
        mesh = engine.mesh
        ranks = [msd.torch.DataLoader(engine, rank=r, layout=layout, steps=2) for r in range(mesh.world_size)]
        for steps in zip(*ranks, strict=True):
            optimizer.zero_grad()
            total = (
                sum(loss_of(model, *slot) for rows in _by_data_parallel(steps, mesh.size("cp")) for slot in rows)
                / steps[0].global_num_valid_tokens
            )
            total.backward()
            optimizer.step()
            losses.append(total.item())
    return losses, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _by_data_parallel(steps, cp: int):
    """Return for each data-parallel rank its slots, each a tuple over the cp ranks."""
    rows = [getattr(step, "microbatches", step) for step in steps]
    return [zip(*rows[first : first + cp], strict=True) for first in range(0, len(rows), cp)]


@functools.cache
def expected(dp: int) -> tuple[list[float], torch.Tensor]:
    losses, weights = trained(config_for({"dp": dp}), None, models.internal)
    assert losses[0] > losses[1] > 0
    return losses, weights


def assert_same(found, wanted):
    (losses, weights), (wanted_losses, wanted_weights) = found, wanted
    assert np.allclose(losses, wanted_losses, rtol=1e-10, atol=0)
    assert float((weights - wanted_weights).norm() / wanted_weights.norm()) <= 1e-10


def test_the_rows_have_what_a_layout_could_get_wrong():
    with msd.start(config_for({}), runtime="local") as engine:
        [step] = msd.torch.DataLoader(engine, rank=0, steps=1)
    for row in step.microbatches:
        padding_N = row["cu_seqlens_padded"].diff() - row["cu_seqlens"].diff()
        assert len(padding_N) > 8
        assert {0, 1, 2, 3} <= set(padding_N.tolist())
        inside = (row["segment_ids"][1:] == row["segment_ids"][:-1]) & (row["segment_ids"][1:] > 0)
        assert (row["labels"][:-1][inside] == -100).any()


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("name", msd.layouts.NAMED)
def test_two_steps_in_a_layout_are_two_steps_in_ours(name, dp):
    assert_same(trained(config_for({"dp": dp}), name, getattr(models, name)), expected(dp))


@pytest.mark.parametrize("name", msd.layouts.NAMED)
def test_so_they_are_where_most_of_a_row_is_padding(name):
    config = config_for({}, packing={"method": "none"})
    found = trained(config, name, getattr(models, name))
    assert_same(found, trained(config, None, models.internal))


def test_lines_are_sequences_of_the_step_where_their_length_changes():
    stages = [{"step": 1, "sequence_length": 2 * SEQUENCE, "global_batch_size": 4}]
    with msd.start(config_for({}, schedule=stages), runtime="local") as engine:
        short, long = msd.torch.DataLoader(engine, rank=0, layout="megatron", steps=2)
    assert [row["tokens"].shape for row in short] == [(4, SEQUENCE)] * 2
    assert [row["tokens"].shape for row in long] == [(2, 2 * SEQUENCE)] * 2
    assert (short.sequence_length, long.sequence_length) == (SEQUENCE, 2 * SEQUENCE)


@pytest.mark.parametrize("name", ["megatron_packed", "flash"])
@pytest.mark.parametrize("mesh", [{"cp": 2}, {"dp": 2, "cp": 2}], ids=str)
def test_two_steps_over_context_parallel_slices_are_two_steps_over_rows(name, mesh):
    assert_same(trained(config_for(mesh), name, getattr(models, name)), expected(mesh.get("dp", 1)))


def test_megatron_lines_of_head_and_tail_slices_are_those_of_whole_lines():
    def joined(model, *rows):
        held = [models.zigzag(range(0, 129, SEQUENCE), index, 2) for index in range(2)]
        fields = {name: models.gathered([row[name].flatten() for row in rows], held) for name in rows[0]}
        return models.megatron(model, {name: field.reshape(-1, SEQUENCE) for name, field in fields.items()})

    sliced = trained(config_for({"cp": 2}, slice="headtail"), WITHOUT_MASK, joined)
    assert_same(sliced, trained(config_for({}), WITHOUT_MASK, models.megatron))


def a_label_shifted_twice(row):
    row["labels"] = row["labels"].roll(-1)


def a_tail_left_out(row):
    row["cu_seq_lens_q"] = row["cu_seq_lens_q"][:-1]


def a_longest_document_too_short(row):
    row["max_length_q"] -= 1


def documents_joined(row):
    row["cu_seq_lens_q"] = row["cu_seq_lens_q"][[0, -1]]
    row["max_length_q"] = int(row["cu_seq_lens_q"][-1])


@pytest.mark.parametrize(
    "fault", [a_label_shifted_twice, a_tail_left_out, a_longest_document_too_short, documents_joined]
)
def test_the_comparison_sees_each_kind_of_fault(fault, monkeypatch):
    def wrong(model, row):
        fault(row)
        attend = models.varlen(row["cu_seq_lens_q"], row["max_length_q"])
        logits = model(row["input_ids"][0], row["position_ids"][0], attend)
        return torch.nn.functional.cross_entropy(logits[:-1], row["labels"][0, 1:], reduction="sum")

    with pytest.raises(AssertionError):
        assert_same(trained(config_for({}), "hf", wrong), expected(1))
