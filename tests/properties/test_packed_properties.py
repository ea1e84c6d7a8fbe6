"""Steps that were packed and are planned again from whole rows: the same plan, whatever they hold."""

import json

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.core.sample import Outcome
from msd.core.written import Written
from msd.planner.planner import Planner
from msd.testing.tables import Part, Row, feed_of, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
LENGTH = 48
METHODS = ["best_fit", "first_fit_decreasing", "concat", "none"]
COLUMNS = (
    "length_D", "padded_D", "num_valid_D", "num_image_tokens_D", "num_images_D", "num_patches_D", "bucket_D", "slot_D",
    "offset_D", "cost_D",
)  # fmt: skip


@st.composite
def parts(draw):
    num_tokens = draw(st.integers(1, LENGTH))
    return Part(num_tokens, draw(st.one_of(st.just(0), st.integers(0, num_tokens))))


@st.composite
def sources(draw):
    rows = st.lists(parts(), min_size=1, max_size=3).map(lambda made: Row(tuple(made)))
    return {name: draw(st.lists(rows, min_size=4, max_size=25)) for name in draw(st.sampled_from([["a"], ["a", "b"]]))}


shapes = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(METHODS),
        "document_multiple": st.sampled_from([1, 4, 8]),
        "mesh": st.sampled_from([Mesh.of(dp=1), Mesh.of(dp=2)]),
        "num_microbatches": st.sampled_from([1, 2]),
        "global_batch_size": st.sampled_from([4, 8]),
        "last": st.sampled_from(["pad", "repeat_tail", "drop"]),
    }
)


def finite(made, shape, **changes):
    shape = dict(shape)
    packing = {"method": shape.pop("packing")}
    batch = {"last": shape.pop("last")}
    return settings_of(
        made, sequence_length=LENGTH, max_epochs=dict.fromkeys(made, 1), end=dict.fromkeys(made, "drop"),
        packing=packing, batch=batch, **{**shape, **changes},
    )  # fmt: skip


def plans_of(made, chosen, planner=None, chunk=7):
    return list(steps_of(planner or Planner(chosen), feed_of(made, chosen, chunk)))


def written_rows(plans):
    """The sequences of steps as rows, in the order in which `msd run` writes them."""
    rows = []
    for plan in plans:
        for bucket in range(plan.num_buckets):
            for slot in range(plan.num_microbatches):
                held = plan.documents_of(bucket, slot)
                for sequence in range(plan.sequences_per_microbatch):
                    mine = held[plan.offset_D[held] // LENGTH == sequence].tolist()
                    documents = tuple(Part(int(plan.length_D[d]), int(plan.num_image_tokens_D[d])) for d in mine)
                    rows.append(Row(documents, Outcome.OK if documents else Outcome.FILTERED))
    return rows


def terms_of(shape):
    return Written(
        sequence_length=LENGTH, document_multiple=shape["document_multiple"], num_buckets=shape["mesh"].size("dp"),
        num_microbatches=shape["num_microbatches"], sequences_per_step=shape["global_batch_size"], tokenizers=(),
        images=None, fingerprint="",
    )  # fmt: skip


def expect_equal(expected, found):
    assert [plan.step for plan in found] == [plan.step for plan in expected]
    for one, other in zip(expected, found, strict=True):
        assert one.is_last == other.is_last or one is expected[-1]
        for column in COLUMNS:
            assert np.array_equal(getattr(one, column), getattr(other, column)), column
        assert one.global_num_valid_tokens == other.global_num_valid_tokens


@given(made=sources(), shape=shapes, data=st.data())
@PROFILE
def test_steps_that_are_read_back_are_planned_as_they_were_written(made, shape, data):
    plans = plans_of(made, finite(made, shape))
    if not plans:
        return
    packed = {"p": written_rows(plans)}
    chosen = finite(packed, shape, terms={"p": {"written": terms_of(shape), "max_rate": 1.0}})
    found = plans_of(packed, chosen, chunk=data.draw(st.integers(1, 9)))
    expect_equal(plans, found)
    for one, other in zip(plans, found, strict=True):
        rows = other.ordinal_D // shape["global_batch_size"]
        assert set(rows.tolist()) <= {one.step}
    # From any boundary, the rest comes as it would have.
    stop = data.draw(st.integers(0, len(found)))
    position = found[stop - 1].progress if stop else Planner(chosen).state_dict()
    planner = Planner(chosen)
    planner.load_state_dict(json.loads(json.dumps(position)))
    expect_equal(plans[stop:], plans_of(packed, chosen, planner))


@given(made=sources(), other=sources(), shape=shapes, data=st.data())
@settings(PROFILE, max_examples=15)
def test_beside_other_sources_whole_rows_come_once_and_stay_whole(made, other, shape, data):
    plans = plans_of(made, finite(made, {**shape, "last": "pad"}))
    mixed = {"p": written_rows(plans), **{f"o{name}": rows for name, rows in other.items()}}
    shape = {**shape, "last": "pad", "mesh": data.draw(st.sampled_from([Mesh.of(dp=1), Mesh.of(dp=2)]))}
    chosen = finite(mixed, shape, terms={"p": {"written": terms_of(shape), "max_rate": 1.0}})
    planner, found, seen = Planner(chosen), [], []
    while True:
        # Each step is planned by a planner that was loaded from text.
        again = Planner(chosen)
        again.load_state_dict(json.loads(json.dumps(planner.state_dict())))
        plan = next(steps_of(again, feed_of(mixed, chosen)), None)
        if plan is None:
            break
        planner = again
        found.append(plan)
        source = plan.source_names.index("p")
        row_D = (plan.bucket_D.astype(np.int64) * plan.num_microbatches + plan.slot_D) * plan.row_length
        sequence_D = (row_D + plan.offset_D) // LENGTH
        for sequence in set(sequence_D[plan.source_D == source].tolist()):
            held = np.flatnonzero(sequence_D == sequence)
            assert (plan.source_D[held] == source).all()
            (ordinal,) = set(plan.ordinal_D[held].tolist())
            assert plan.part_D[held].tolist() == list(range(len(mixed["p"][ordinal].parts)))
            seen.append(ordinal)
    assert sorted(seen) == [ordinal for ordinal, row in enumerate(mixed["p"]) if row.parts]
    direct = plans_of(mixed, chosen)
    assert [plan.digest for plan in direct] == [plan.digest for plan in found]
    tokens = sum(int(plan.length_D.sum()) for plan in found)
    assert tokens == sum(part.num_tokens for rows in mixed.values() for row in rows for part in row.parts)
