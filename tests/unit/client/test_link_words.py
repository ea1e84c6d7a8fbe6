"""What is said to people: when a wait has been long, and where a rank starts."""

import logging

import pytest

from msd.client.link.arrival import arrival
from msd.client.link.messages import Stated, Welcome
from msd.client.link.watchdog import Watchdog


def test_a_watchdog_is_due_after_its_time_and_each_time_the_wait_has_doubled():
    watchdog = Watchdog(30.0)
    assert [second for second in range(300) if watchdog.is_due(float(second))] == [30, 60, 120, 240]
    assert watchdog.left_s(300.0) == 180.0


def test_a_watchdog_that_was_not_asked_for_long_is_due_once():
    watchdog = Watchdog(30.0)
    assert [watchdog.is_due(1000.0), watchdog.is_due(1000.0)] == [True, False]
    assert watchdog.left_s(1000.0) == 920.0


def test_a_watchdog_without_a_time_is_never_due():
    assert not Watchdog(None).is_due(1e9)


def said(*, stated=None, run="r1", generation=0, origin="", step=7, has_moved=False):
    welcome = Welcome(
        session=1, mesh={"dp": 1}, generation=generation, first_step=7, position="{}", deadline_s=1.0, origin=origin
    )
    return arrival(3, run, welcome, stated, step=step, has_moved=has_moved)


STATED = Stated(run="r1", generation=0, next_step=9, num_loads=0, position="{}")


@pytest.mark.parametrize(
    ("case", "level", "text"),
    [
        ({}, logging.INFO, "rank 3 starts at step 7 of generation 0 of run r1"),
        (
            {"origin": "checkpoint ckpt, step 7"},
            logging.WARNING,
            "rank 3 starts at step 7 of generation 0 of run r1, from checkpoint ckpt, step 7; if the trainer stands "
            "elsewhere, have it load the state that was saved with it",
        ),
        (
            {"stated": STATED, "step": 9},
            logging.INFO,
            "rank 3 is connected again; it goes on at step 9 of generation 0",
        ),
        (
            {"stated": STATED, "generation": 1, "has_moved": True},
            logging.INFO,
            "rank 3 is connected again; the run has moved to step 7 of generation 1",
        ),
        (
            {"stated": STATED, "run": "r2", "step": 9},
            logging.WARNING,
            "rank 3 goes on at step 9 of generation 0 with run r2, which was started after run r1 was gone",
        ),
    ],
)
def test_a_rank_says_where_it_starts_and_why(case, level, text):
    assert said(**case) == (level, text)
