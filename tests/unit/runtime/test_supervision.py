"""What the supervisor decides and tells without any process: where to go back to, and what was made good."""

import logging

import pytest

from msd.coordinator.staff import Fill, Vacate, Worker
from msd.coordinator.standing import RankStanding, Standing
from msd.core.journal import Suspend
from msd.core.mesh import Mesh
from msd.core.state import fingerprint
from msd.errors import ConfigError
from msd.runtime.dask.outfit import served_by
from msd.runtime.dask.recoveries import Recoveries
from msd.runtime.dask.supervisor import rewound

EDITS = tuple(Suspend(at_step=step, source="web", noted_at=step) for step in (5, 9))


def standing(*ranks: tuple[int, int, int]) -> Standing:
    """Of a run in generation 1, with ranks of (number, session, next step)."""
    return Standing(
        generation=1,
        first_step=4,
        start={"step": 4},
        digest="d",
        edits=EDITS,
        ranks=tuple(RankStanding(rank=r, generation=1, next_step=n, session=s) for r, s, n in ranks),
        num_sessions=7,
        positions={step: {"step": step} for step in (8, 9)},
        isolated=(("web", 3),),
    )


def test_a_rewind_goes_to_the_step_of_the_slowest_connected_rank():
    found = rewound(standing((0, 6, 9), (1, 7, 8), (2, 0, 5)), None)
    assert (found.generation, found.first_step, found.start) == (2, 8, {"step": 8})
    assert found.digest == fingerprint({"step": 8})
    assert (found.ranks, found.num_sessions, found.loads_before) == ((), 7, 2)
    assert found.edits == EDITS[1:], "what was noted before is part of the position"
    assert found.isolated == (("web", 3),)


def test_a_rewind_of_a_run_without_ranks_goes_to_where_its_generation_began():
    assert rewound(standing(), None).start == {"step": 4}
    assert rewound(standing((0, 1, 9)), 4).first_step == 4


def test_a_step_of_which_the_position_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match="before step 6 is not known any more; those before steps 4, 8, 9 are"):
        rewound(standing(), 6)


@pytest.mark.parametrize(
    ("mesh", "count", "expected"),
    [
        ({"dp": 4}, 2, [(0, 1), (2, 3)]),
        ({"dp": 3}, 2, [(0,), (1, 2)]),
        ({"dp": 2, "tp": 2}, 9, [(0, 1), (2, 3)]),
        ({"pp": 2, "dp": 2}, 2, [(0, 2), (1, 3)]),
    ],
)
def test_constructors_serve_whole_buckets_in_runs(mesh, count, expected):
    assert list(served_by(Mesh.of(**mesh), count).values()) == expected


class Told:
    """Recoveries whose clock is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.recoveries = Recoveries(lambda: self.now_s)

    def lost(self, post, kind, how="SIGKILL"):
        self.recoveries.lost(Vacate(post, kind, 1, "worker", how))

    def filled(self, post, kind, after_s):
        self.now_s += after_s
        self.recoveries.filled(Fill(post, kind, 2, Worker("worker", "tcp://h:1", "h")))

    def told(self):
        return [(one["role"], one["name"], one["how"], one["took_s"]) for one in self.recoveries.as_list()]


def test_a_loss_is_listed_at_once_and_how_long_it_took_when_it_is_made_good(caplog):
    told = Told()
    told.lost("planner", "planner")
    assert told.told() == [("planner", "planner", "SIGKILL", None)]
    assert caplog.text == ""
    told.filled("planner", "planner", 1.5)
    assert told.told() == [("planner", "planner", "SIGKILL", 1.5)]
    assert "the planner was lost (SIGKILL); it goes on in worker worker after 1.5 s" in caplog.text


def test_a_post_that_was_lost_twice_before_it_was_held_again_is_made_good_at_once():
    told = Told()
    told.lost("constructor-0", "constructor")
    told.lost("constructor-0", "constructor", "exit status 1")
    told.lost("constructor-1", "constructor")
    told.filled("constructor-0", "constructor", 2.0)
    assert [one[3] for one in told.told()] == [2.0, 2.0, None]


def test_any_new_host_makes_good_the_oldest_loss_of_one(caplog):
    told = Told()
    told.lost("a", "host")
    told.lost("b", "host")
    told.filled("c", "host", 1.0)
    assert [one[3] for one in told.told()] == [1.0, None]
    told.filled("d", "host", 1.0)
    told.filled("first", "host", 1.0)
    assert [one[3] for one in told.told()] == [1.0, 2.0]
    assert [record.levelno for record in caplog.records if "is lost" in record.message] == [logging.WARNING] * 2
