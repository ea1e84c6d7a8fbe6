"""Standings on their way between processes."""

import json

import pytest

from msd.coordinator.standing import RankStanding, Stall, Standing
from msd.core.journal import SkipRows, Suspend
from msd.errors import StateError
from msd.runtime.dask.calls import Fence, Superseded
from msd.runtime.dask.standings import standing_from_wire, standing_to_wire

STANDING = Standing(
    generation=2,
    first_step=7,
    start={"step": 7},
    digest="ab",
    opened_by=1,
    edits=(Suspend(at_step=9, source="web"), SkipRows(at_step=8, source="web", first=3, last=4, reason="killed")),
    ranks=(
        RankStanding(rank=0, generation=2, next_step=9, num_loads=2, session=5, progress={"step": 9}),
        RankStanding(rank=1, generation=1, next_step=3),
    ),
    num_sessions=5,
    positions={8: {"step": 8}, 9: {"step": 9}},
    stall=Stall("web", 31, 4.5),
)


def test_a_standing_comes_back_as_it_was_through_json():
    assert standing_from_wire(json.loads(json.dumps(standing_to_wire(STANDING)))) == STANDING


def test_a_standing_with_a_damaged_edit_is_refused():
    wire = standing_to_wire(STANDING)
    wire["edits"][0]["edit"] = "forget"
    with pytest.raises(StateError, match="the journal is damaged"):
        standing_from_wire(wire)


def test_a_fence_follows_the_highest_term_and_refuses_lower_ones_by_name():
    fence = Fence("loader host a")
    fence.admit(2)
    fence.admit(2)
    with pytest.raises(Superseded, match="loader host a follows the planner of term 2 and refuses one of term 1"):
        fence.admit(1)
    fence.admit(3)
    assert fence.term == 3
