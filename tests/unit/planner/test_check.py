import dataclasses

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.planner.check import check_plan
from msd.planner.explain import explain, plan_table
from msd.planner.planner import Planner
from msd.testing.tables import feed_of, row, settings_of, steps_of

MADE = {"web": [row(n) for n in (30, 20, 10, 25, 15, 5)], "code": [row(12, 7), row(), row(40)]}


@pytest.fixture(scope="module")
def plan():
    chosen = settings_of(MADE, mesh=Mesh.of(dp=2), num_microbatches=2, document_multiple=4)
    return next(steps_of(Planner(chosen), feed_of(MADE, chosen)))


def changed(plan, **columns):
    def moved(name, value):
        array = getattr(plan, name).copy()
        for index, entry in value.items():
            array[index] = entry
        return array

    return dataclasses.replace(plan, **{name: moved(name, value) for name, value in columns.items()})


def members(plan):
    columns = [plan.source_D, plan.ordinal_D, plan.part_D, plan.start_D, plan.length_D]
    return np.stack(columns, axis=1).astype(np.int64)


def test_a_plan_of_the_planner_breaks_no_rule(plan):
    assert check_plan(plan, members(plan)) == []


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ({"bucket_D": {0: 9}}, "lies in no bucket"),
        ({"slot_D": {0: -1}}, "lies in no slot"),
        ({"source_D": {0: 5}}, "source that does not exist"),
        ({"length_D": {0: 0}}, "has no tokens"),
        ({"padded_D": {0: 63}}, "not padded to the document multiple"),
        ({"offset_D": {0: 2}}, "does not start at a document multiple"),
        ({"offset_D": {0: 124}}, "lies outside its row"),
        ({"offset_D": {1: 60}}, "crosses the boundary of a sequence"),
        ({"offset_D": {1: 0}}, "overlaps the one before it"),
        ({"num_valid_D": {0: 99}}, "more labels than tokens"),
        ({"num_image_tokens_D": {0: 99}}, "more image placeholders than tokens"),
        ({"start_D": {0: 1}, "num_images_D": {0: 1}}, "does not start its sample"),
    ],
)
def test_each_broken_rule_is_named(plan, columns, rule):
    assert any(rule in line for line in check_plan(changed(plan, **columns)))


def test_a_sample_that_stands_twice_is_found(plan):
    twice = {name: {1: getattr(plan, name)[0]} for name in ("source_D", "ordinal_D", "part_D", "start_D", "length_D")}
    assert any("stand twice" in line for line in check_plan(changed(plan, **twice)))


def test_a_missing_and_an_extra_member_are_found(plan):
    wanted = members(plan)
    wanted[0, 1] += 1000
    (line,) = check_plan(plan, wanted)
    assert "1 missing" in line
    assert "1 too many" in line


def test_an_empty_microbatch_is_found_unless_the_step_is_the_last(plan):
    moved = changed(plan, bucket_D=dict.fromkeys(np.flatnonzero(plan.bucket_D == 1).tolist(), 0))
    assert any("microbatches are empty" in line for line in check_plan(moved))
    kept = plan.bucket_D == 0
    columns = {name: getattr(plan, name)[kept] for name in plan.__dataclass_fields__ if name.endswith("_D")}
    last = dataclasses.replace(plan, **columns, global_num_valid_tokens=int(plan.num_valid_D[kept].sum()), is_last=True)
    assert check_plan(last) == []


def test_a_wrong_count_of_labels_is_found(plan):
    wrong = dataclasses.replace(plan, global_num_valid_tokens=1)
    assert any("global_num_valid_tokens is 1" in line for line in check_plan(wrong))


def test_ranks_that_are_fed_twice_or_never_are_found(plan):
    wrong = dataclasses.replace(plan, consumers_B=((0,), (0,)))
    assert check_plan(wrong) == ["consumers do not name each of 2 ranks once"]


def test_explain_names_every_row_and_every_source(plan):
    text = explain(plan)
    assert text.count("slot ") == 4
    assert text.count("bucket ") == 2
    assert "web:" in text
    assert "code:" in text
    assert f"fill {plan.report.fill:.2%}" in text


def test_the_table_has_one_entry_a_document(plan):
    table = plan_table(plan)
    assert len(table) == plan.num_documents
    assert sum(entry["length"] for entry in table) == int(plan.length_D.sum())
    assert [(e["bucket"], e["slot"], e["offset"]) for e in table] == sorted(
        (e["bucket"], e["slot"], e["offset"]) for e in table
    )
