"""Any document of a step can be followed from its source to the slice that a rank holds."""

from xml.etree import ElementTree

import numpy as np
import pytest

import msd
from msd.build import build_orders, index_all
from msd.core.slices import held_positions
from msd.errors import ConfigError
from msd.planner.frames import plan_to_pandas
from msd.planner.lineage import documents_of, lineage, parse_sample, slices_of
from msd.testing.scenarios import image_text

CONFIG = image_text(mesh={"pp": 2, "dp": 2, "cp": 2, "tp": 2}, fields_by_stage=True, broadcast=["tp"])


@pytest.fixture(scope="module")
def plan():
    return next(msd.plan(CONFIG, steps=1))


@pytest.fixture(scope="module")
def orders():
    return build_orders(CONFIG, index_all(CONFIG))


def states(found):
    return {state.op: state.what for state in found.states}


def test_a_document_is_followed_through_every_op(plan, orders):
    document = int(np.flatnonzero((plan.bucket_D == 1) & (plan.num_images_D > 0))[0])
    source, ordinal, _ = plan.sample_id(document)
    found = lineage(plan, document, orders[source].place_of(ordinal))
    place = orders["photos"].place_of(ordinal)
    what = states(found)
    assert list(what) == [
        "source", "mix", "pack", "distribute", "cost", "balance", "broadcast_at", "stages", "slice 0", "slice 1",
    ]  # fmt: skip
    assert what["source"].endswith(f"epoch 0, {place.shard} row {place.row}")
    assert what["pack"].startswith(f"{plan.length_D[document]} tokens in an extent of {plan.padded_D[document]}, ")
    assert f"stand for {plan.num_patches_D[document]} patches of 1 image;" in what["pack"]
    assert what["distribute"] == "bucket 1 of 2, for ranks 4-7, 12-15"
    offset = plan.offset_D[document]
    assert what["balance"] == (
        f"slot {plan.slot_D[document]} of 2, positions [{offset}, {offset + plan.length_D[document]})"
    )
    assert what["broadcast_at"] == "along tp: ranks 4, 6, 12, 14 fetch for the others"
    assert what["stages"].startswith("pp 0 gets input_ids, ")
    assert what["slice 1"].endswith("on ranks 6-7, 14-15")


@pytest.mark.parametrize("method", ["zigzag", "headtail"])
def test_slices_of_a_document_are_what_ranks_hold_of_it(method):
    config = CONFIG.replace(mesh={"cp": 4, "pp": 1}, batch={"slice": method}, fields_by_stage=False)
    (step,) = msd.plan(config, steps=1)
    for document in range(step.num_documents):
        first, last = step.offset_D[document], step.offset_D[document] + step.length_D[document]
        row = step.documents_of(step.bucket_D[document], step.slot_D[document])
        starts = np.append(step.offset_D[row], step.row_length).astype(np.int32)
        held_CT = held_positions(method, starts, sequence_length=step.sequence_length, degree=4)
        for index, runs in slices_of(step, document).items():
            expected = [position for position in held_CT[index].tolist() if first <= position < last]
            assert [position for run in runs for position in range(*run)] == expected


def test_a_sample_in_pieces_is_followed_piece_by_piece():
    step = next(step for step in msd.plan(image_text("concat", mesh={"dp": 2}), steps=9) if step.start_D.any())
    document = int(np.flatnonzero(step.start_D)[0])
    source, ordinal, part = step.sample_id(document)
    text = msd.explain(step, f"{source}:{ordinal}.{part}")
    start, length = step.start_D[document], step.length_D[document]
    assert f"tokens [{start}, {start + length}) of the part" in text


def test_all_parts_of_a_row_are_found_by_its_ordinal(plan):
    source, ordinal, part = plan.sample_id(0)
    assert 0 in documents_of(plan, f"{source}:{ordinal}")
    assert documents_of(plan, f"{source}:{ordinal}.{part}") == [0]


def test_a_table_for_pandas_has_a_row_a_document_with_ranks_files_and_slices(plan, orders):
    table = plan_to_pandas([plan, plan], orders)
    assert len(table) == 2 * plan.num_documents
    first = table.iloc[0]
    assert first["ranks"] == plan.consumers_B[0]
    assert first["slices"] == slices_of(plan, 0)
    place = orders[first["source"]].place_of(first["ordinal"])
    assert (first["epoch"], first["shard"], first["row"]) == (place.epoch, place.shard, place.row)
    assert int(table["length"].sum()) == 2 * int(plan.length_D.sum())
    assert msd.explain(plan).to_pandas().equals(plan_to_pandas(plan))


def test_an_explanation_is_drawn_in_a_notebook(plan):
    drawing = msd.explain(plan)._repr_svg_()
    titles = ElementTree.fromstring(drawing).findall(".//{*}title")
    assert len(titles) == plan.num_documents + plan.num_buckets * plan.num_microbatches
    assert "bucket 1 slot 1" in drawing


@pytest.mark.parametrize(
    ("text", "expected"),
    [("web:17.2", ("web", 17, 2)), ("web:17", ("web", 17, None)), ("s3://web:3.0", ("s3://web", 3, 0))],
)
def test_a_sample_is_written_as_plans_print_it(text, expected):
    assert parse_sample(text) == expected


@pytest.mark.parametrize("text", ["web", "web:", ":3", "web:x", "web:3.", "web:3.x", "web:-3", "web:3.0.1"])
def test_what_is_no_sample_is_refused(text):
    with pytest.raises(ConfigError, match="is no sample; write SOURCE:ORDINAL"):
        parse_sample(text)


def test_a_sample_that_is_not_there_is_said(plan):
    with pytest.raises(ConfigError, match="step 0 does not hold web:99999"):
        msd.explain(plan, "web:99999")
    with pytest.raises(ConfigError, match=r"there is no source 'wb' \(sources: photos, web\)"):
        msd.explain(plan, "wb:1")
