"""Messages of many small values as one text and one array."""

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.core.sample import MetaTable, Sample, SampleId
from msd.core.stages import FIRST_FIELDS, LAST_FIELDS
from msd.errors import EngineError
from msd.planner.planner import Planner
from msd.planner.strategies.vlm_hybrid import vlm_hybrid
from msd.runtime.dask.wire import pack, plan_from_wire, plan_to_wire, tables_from_wire, tables_to_wire, unpack
from msd.testing.plans import Placed, plan_by_hand
from msd.testing.tables import LengthCost, Part, Row, failed_row, feed_of, row, settings_of, steps_of, table_of


@pytest.mark.parametrize("array", [
    np.arange(5, dtype=np.int32),
    np.arange(6, dtype=np.int64).reshape(2, 3),
    np.empty(0, dtype=np.float32),
    np.empty((0, 2), dtype=np.uint8),
    np.array([True, False, True]),
    np.arange(12).reshape(3, 4)[:, ::2],
], ids=lambda array: f"{array.dtype}{list(array.shape)}")  # fmt: skip
def test_arrays_come_back_with_type_and_shape(array):
    found = unpack(pack({"before": np.ones(3, dtype=np.uint8), "nested": [{"array": array}]}))["nested"][0]["array"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert (found == array).all()


def test_plain_values_come_back_and_tuples_as_lists():
    value = {"a": [1, 2.5, None, True, "ä"], "b": {"c": (1, ("x", 2))}, "d": np.int64(2**40)}
    assert unpack(pack(value)) == {"a": [1, 2.5, None, True, "ä"], "b": {"c": [1, ["x", 2]]}, "d": 2**40}


def test_tables_come_back_each_with_its_own_rows_samples_runs_and_images():
    rows = {
        "photos": [Row((Part(9, 5, images=(2, 3)),)), failed_row(), Row((Part(4, 1),))],
        "web": [row(3, 4), row()],
        "none": [],
        "more": [Row((Part(7, 7),))],
    }
    sent = [table_of(source, 5, chosen) for source, chosen in rows.items()]
    found = tables_from_wire(unpack(pack(tables_to_wire(sent))))
    assert [table.num_patches_I.tolist() for table in found] == [[8, 12, 4], [], [], [28]]
    for one, back in zip(sent, found, strict=True):
        for name in MetaTable.__dataclass_fields__:
            wanted, got = getattr(one, name), getattr(back, name)
            if isinstance(wanted, np.ndarray):
                assert (got.dtype, got.tolist()) == (wanted.dtype, wanted.tolist()), name
            else:
                assert got == wanted, name


@pytest.mark.parametrize("strategy", [None, vlm_hybrid])
def test_a_plan_comes_back_with_all_it_says(strategy):
    made = {"photos": [Row((Part(9, 5, images=(2, 3)),)), Row((Part(4, 1),))], "web": [row(3, 4), row(11)]}
    cost = {"backbone": LengthCost(), "encoder": LengthCost(1.0, 0.1)}
    chosen = settings_of(made, mesh=Mesh.of(dp=2, tp=2), num_microbatches=2, cost=cost, strategy=strategy)
    plan = next(steps_of(Planner(chosen), feed_of(made, chosen)))
    back = plan_from_wire(unpack(pack(plan_to_wire(plan))))
    assert back.digest == plan.digest
    assert plain(back) == plain(plan)
    assert (back.encoder is None) == (strategy is None)


def plain(value):
    """A value with its arrays as lists, and what tells types apart."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def test_however_many_arrays_two_values_travel():
    packed = pack([{"plan": {f"column{n}": np.arange(n) for n in range(20)}} for _ in range(3)])
    assert isinstance(packed["text"], bytes)
    assert packed["buffer"].dtype == np.uint8
    assert packed["objects"] == []


def test_an_exception_is_passed_on_as_it_is():
    error = EngineError("gone")
    assert unpack(pack([{"kind": "fail", "error": error}]))[0]["error"] is error


def test_a_plan_with_dummies_comes_back_with_them():
    sample = Sample(id=SampleId("web", 0, 0), tokens_T=np.arange(3, dtype=np.int32))
    plan = plan_by_hand(
        [[[Placed(sample, 0)]]], mesh=Mesh.of(dp=1), sequence_length=8, align=("image",), dummy_BM=np.array([[True]])
    )
    back = plan_from_wire(unpack(pack(plan_to_wire(plan))))
    assert back.align == ("image",)
    assert back.dummy_BM.dtype == np.bool_
    assert back.digest == plan.digest


def test_a_plan_comes_back_with_what_each_stage_and_slice_receives():
    sample = Sample(id=SampleId("web", 0, 0), tokens_T=np.arange(3, dtype=np.int32))
    mesh = Mesh.of(pp=2, dp_replicate=1, cp=2, dp_shard=1)
    plan = plan_by_hand(
        [[[Placed(sample, 0)]]], mesh=mesh, sequence_length=8, slice_axis="cp", slice_method="headtail",
        fields_P=(FIRST_FIELDS, LAST_FIELDS),
    )  # fmt: skip
    back = plan_from_wire(unpack(pack(plan_to_wire(plan))))
    assert (back.mesh, back.slice_method, back.fields_P) == (mesh, "headtail", (FIRST_FIELDS, LAST_FIELDS))
    assert back.digest == plan.digest != plan_by_hand([[[Placed(sample, 0)]]], mesh=mesh, sequence_length=8).digest
    assert [back.share_key(rank) for rank in range(4)] == [plan.share_key(rank) for rank in range(4)]
