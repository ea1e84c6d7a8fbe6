"""A plan that encodes images wrongly is told so: one broken plan of each kind."""

import dataclasses

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.planner.check import check_plan
from msd.planner.planner import Planner
from msd.planner.strategies.vlm_hybrid import vlm_hybrid
from msd.testing.tables import LengthCost, Part, Row, feed_of, row, settings_of, steps_of

MADE = {
    "photos": [Row((Part(20, 12, (8, 4)),)), Row((Part(9, 5),)), Row((Part(31, 6, (1, 2, 3)),))] * 4,
    "web": [row(30), row(11)],
}
COSTS = {"backbone": LengthCost(1.0, 0.01), "encoder": LengthCost(2.0, 0.02)}


@pytest.fixture(scope="module")
def plan():
    mesh = Mesh.of(pp=2, dp=2, tp=2)
    chosen = settings_of(MADE, mesh=mesh, num_microbatches=2, strategy=vlm_hybrid, cost=COSTS, encoder=every_slot())
    found = next(steps_of(Planner(chosen), feed_of(MADE, chosen)))
    assert len(found.encoder.document_I) > 5
    return found


def every_slot():
    from msd.planner.config import EncoderConfig

    return EncoderConfig(ranks="dp_cp")


def changed(plan, **fields):
    """The plan with entries of columns of its encoder replaced, or whole fields."""
    replaced = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            replaced[name] = getattr(plan.encoder, name).copy()
            for index, entry in value.items():
                replaced[name][index] = entry
        else:
            replaced[name] = value
    return dataclasses.replace(plan, encoder=dataclasses.replace(plan.encoder, **replaced))


def test_the_planners_own_breaks_no_rule(plan):
    assert check_plan(plan) == []


def without_the_last(plan):
    columns = ("document_I", "index_I", "num_patches_I", "num_tokens_I", "offset_I", "round_I", "rank_I")
    return changed(plan, **{name: getattr(plan.encoder, name)[:-1] for name in columns})


def one_column_short(plan):
    return changed(plan, rank_I=plan.encoder.rank_I[:-1])


def one_image_twice(plan):
    return changed(plan, index_I={1: int(plan.encoder.index_I[0])}, document_I={1: int(plan.encoder.document_I[0])})


def one_patch_more(plan):
    return changed(plan, num_patches_I={0: int(plan.encoder.num_patches_I[0]) + 1})


def one_embedding_less(plan):
    last = len(plan.encoder.document_I) - 1
    return changed(plan, num_tokens_I={last: int(plan.encoder.num_tokens_I[last]) - 1})


BROKEN = {
    without_the_last: "images are to be encoded, the step has",
    one_column_short: "images are to be encoded, the step has",
    one_image_twice: "are not those of the documents, each once and in order",
    one_patch_more: "has other patches than its document",
    one_embedding_less: "has other embeddings than its document",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_images_that_are_not_those_of_the_step_are_found(plan, broken):
    assert any(BROKEN[broken] in line for line in check_plan(broken(plan)))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num_patches_I": {0: 0}}, "has no patches"),
        ({"rank_I": {0: 1}}, "is encoded by a rank that does not encode"),
        ({"offset_I": {0: 63}}, "has its embeddings elsewhere than its placeholders"),
        ({"num_rounds": 3}, "images are encoded in 3 rounds, the step has 2 slots"),
        ({"num_rounds": 1}, "is not encoded in the round of its slot"),
        ({"ranks_E": (0, 0, 2)}, "are not different ranks of the mesh"),
        ({"ranks_E": (0, 2, 99)}, "are not different ranks of the mesh"),
        ({"receivers_B": ((0,), (2, 3))}, "do not go to the ranks of the first pipeline stage"),
        ({"receivers_B": ((0, 1, 4), (2, 3))}, "do not go to the ranks of the first pipeline stage"),
        ({"returns": (0, 1, 2, 3)}, "gradients do not come back from one rank of those that compute the same"),
        ({"returns": (0,)}, "gradients do not come back from one rank of those that compute the same"),
    ],
)
def test_each_broken_rule_is_named(plan, fields, rule):
    lines = check_plan(changed(plan, **fields))
    assert any(rule in line for line in lines)


def test_an_image_is_named_by_its_sample(plan):
    document = int(plan.encoder.document_I[1])
    name, ordinal, part = plan.sample_id(document)
    (line,) = check_plan(changed(plan, rank_I={1: 7}))
    assert line == (
        f"1 images: image {int(plan.encoder.index_I[1])} of {name}:{ordinal}.{part} is encoded by a rank that does not "
        "encode"
    )


def test_rounds_follow_slots(plan):
    wrong = 1 - plan.encoder.round_I
    assert any("round of its slot" in line for line in check_plan(changed(plan, round_I=wrong.astype(np.int32))))
