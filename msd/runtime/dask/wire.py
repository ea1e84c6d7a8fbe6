"""Nouns as flat dictionaries of few arrays, and back: what Dask's comms carry without a copy and without pickle."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from msd.core.encoder import EncoderPlan, EncoderReport
from msd.core.mesh import Mesh
from msd.core.plan import PlanReport, StepPlan
from msd.core.sample import AdmittedFrom, Failure, MetaTable, SampleId, SampleSlab

Wire = dict[str, Any]
"""Strings, numbers, lists and arrays by name."""

_ARRAY, _OBJECT = 1, 2
_ALIGNED = 8
_TABLE_COLUMNS = (
    "num_parts_R", "outcome_R", "num_tokens_S", "num_image_tokens_S", "num_images_S", "num_patches_S", "num_bytes_S",
    "num_runs_S", "runs_L2", "num_patches_I",
)  # fmt: skip
_SLAB_COLUMNS = (
    "tokens", "token_ends_S", "num_image_tokens_S", "trained", "has_trained_S", "pixels_PF", "grids_I3", "starts_I",
    "num_images_S",
)  # fmt: skip


def pack(value: Any) -> Wire:
    """Return plain values, nested as they like and with arrays among them, in one text and one array.

    For messages of many small arrays: Dask takes a good part of a millisecond to write down a dictionary of twenty.
    Exceptions are passed on as they are.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    objects: list[Any] = []
    nbytes = 0

    def hook(found: Any) -> Any:
        nonlocal nbytes
        if isinstance(found, np.generic):
            return found.item()
        if not isinstance(found, np.ndarray):
            objects.append(found)
            return msgspec.msgpack.Ext(_OBJECT, msgspec.msgpack.encode(len(objects) - 1))
        arrays.append(found)
        head = msgspec.msgpack.encode((nbytes, found.dtype.str, found.shape))
        nbytes += -(-found.nbytes // _ALIGNED) * _ALIGNED
        return msgspec.msgpack.Ext(_ARRAY, head)

    text = msgspec.msgpack.encode(value, enc_hook=hook)
    buffer = np.zeros(nbytes, dtype=np.uint8)
    start = 0
    for array in arrays:
        buffer[start : start + array.nbytes].view(array.dtype)[:] = array.ravel()
        start += -(-array.nbytes // _ALIGNED) * _ALIGNED
    return {"text": text, "buffer": buffer, "objects": objects}


def unpack(wire: Wire) -> Any:
    """Return what `pack` took; tuples come back as lists, arrays as views of one buffer."""
    buffer, objects = wire["buffer"], wire["objects"]

    def hook(code: int, head: memoryview) -> Any:
        found = msgspec.msgpack.decode(head)
        if code == _OBJECT:
            return objects[found]
        start, name, shape = found
        dtype = np.dtype(name)
        return buffer[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    return msgspec.msgpack.decode(wire["text"], ext_hook=hook)


def tables_to_wire(tables: Sequence[MetaTable]) -> Wire:
    """Return tables of any sources, column by column: as many arrays as there are columns, however many tables."""
    wire: Wire = {
        "heads": [
            [
                t.source,
                t.start,
                t.num_rows,
                len(t.num_tokens_S),
                len(t.runs_L2),
                len(t.num_patches_I),
                [_failure(f) for f in t.failures],
                t.admissions,
            ]
            for t in tables
        ]
    }
    for name in _TABLE_COLUMNS if tables else ():
        wire[name] = np.concatenate([getattr(table, name) for table in tables])
    return wire


def tables_from_wire(wire: Wire) -> list[MetaTable]:
    """Return the tables that `tables_to_wire` took."""
    tables = []
    row = sample = run = image = 0
    for source, start, num_rows, num_samples, num_runs, num_images, failures, admissions in wire["heads"]:
        ends = {
            "R": (row, row + num_rows),
            "S": (sample, sample + num_samples),
            "2": (run, run + num_runs),
            "I": (image, image + num_images),
        }
        columns = {name: wire[name][slice(*ends[name[-1]])] for name in _TABLE_COLUMNS}
        tables.append(
            MetaTable(
                source=source,
                start=start,
                failures=tuple(_from_failure(f) for f in failures),
                admissions=tuple(AdmittedFrom(*one) for one in admissions),
                **columns,
            )
        )
        row, sample, run, image = row + num_rows, sample + num_samples, run + num_runs, image + num_images
    return tables


def slab_to_wire(slab: SampleSlab) -> Wire:
    """Return a slab: nine arrays, and its ids as three more."""
    names = sorted({sample_id.source for sample_id in slab.ids})
    place = {name: index for index, name in enumerate(names)}
    return {
        "names": names,
        "ids": np.array([(place[i.source], i.ordinal, i.part) for i in slab.ids], dtype=np.int64).reshape(-1, 3),
        **{name: getattr(slab, name) for name in _SLAB_COLUMNS},
    }


def slab_from_wire(wire: Wire) -> SampleSlab:
    """Return the slab that `slab_to_wire` took."""
    ids = tuple(SampleId(wire["names"][source], ordinal, part) for source, ordinal, part in wire["ids"].tolist())
    return SampleSlab(ids=ids, **{name: wire[name] for name in _SLAB_COLUMNS})


def plan_to_wire(plan: StepPlan) -> Wire:
    """Return a plan: its columns as arrays, the rest as plain values."""
    wire: Wire = {}
    for field in fields(StepPlan):
        value = getattr(plan, field.name)
        if field.name == "mesh":
            value = [list(pair) for pair in plan.mesh.sizes]
        elif field.name == "report":
            value = {**_fields(plan.report), "encoder": plan.report.encoder and _fields(plan.report.encoder)}
        elif field.name == "encoder":
            value = plan.encoder and _fields(plan.encoder)
        elif isinstance(value, tuple):
            value = _lists(value)
        wire[field.name] = value
    return wire


def plan_from_wire(wire: Wire) -> StepPlan:
    """Return the plan that `plan_to_wire` took."""
    values = dict(wire)
    values["mesh"] = Mesh(tuple((axis, size) for axis, size in wire["mesh"]))
    values["report"] = PlanReport(**{**wire["report"], "encoder": _made(EncoderReport, wire["report"]["encoder"])})
    values["encoder"] = _made(EncoderPlan, wire["encoder"])
    for name in ("consumers_B", "broadcast", "source_names", "notes", "fields_P", "align"):
        values[name] = _tuples(wire[name])
    return StepPlan(**values)


def _fields(value: Any) -> Wire:
    return {field.name: _lists(getattr(value, field.name)) for field in fields(value)}


def _made(kind: Callable[..., Any], wire: Wire | None) -> Any:
    if wire is None:
        return None
    return kind(**{name: _tuples(value) if isinstance(value, list) else value for name, value in wire.items()})


def _lists(value: Any) -> Any:
    return [_lists(inner) for inner in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list | tuple) else value


def _failure(failure: Failure) -> list[Any]:
    return [failure.ordinal, failure.reason, failure.shard, failure.row]


def _from_failure(failure: Sequence[Any]) -> Failure:
    ordinal, reason, shard, row = failure
    return Failure(ordinal=ordinal, reason=reason, shard=shard, row=row)
