"""Reports of a rank: the loop does not wait for them, and hears of a refusal at its next one."""

import logging
import threading

import pytest

from msd.client.link.reporting import Reporter
from msd.core.checks import losses_of
from msd.errors import ConfigError

WAIT_S = 10


def test_reports_that_wait_become_one_of_the_newest_values():
    may_go_on, sent = threading.Event(), []

    def send(losses):
        sent.append(losses)
        assert may_go_on.wait(WAIT_S)

    reporter = Reporter(send, name="rank 0")
    reporter.report({"a": 1.0})
    while not sent:
        pass
    reporter.report({"a": 2.0, "b": 1.0})
    reporter.report({"b": 3.0})
    may_go_on.set()
    assert reporter.flush(WAIT_S)
    assert sent == [{"a": 1.0}, {"a": 2.0, "b": 3.0}]
    reporter.close(WAIT_S)
    reporter.close(WAIT_S)


def test_a_refusal_is_raised_by_the_next_report_which_is_sent_all_the_same():
    sent = []

    def send(losses):
        sent.append(losses)
        if "c" in losses:
            raise ConfigError("there is no source 'c'")

    reporter = Reporter(send, name="rank 0")
    reporter.report({"c": 1.0})
    assert reporter.flush(WAIT_S)
    with pytest.raises(ConfigError, match="there is no source 'c'"):
        reporter.report({"a": 1.0})
    assert reporter.flush(WAIT_S)
    reporter.report({"a": 2.0})
    reporter.close(WAIT_S)
    assert sent == [{"c": 1.0}, {"a": 1.0}, {"a": 2.0}]


def test_the_last_refusal_is_told_in_the_log(caplog):
    def send(losses):
        raise ConfigError("there is no source 'c'")

    reporter = Reporter(send, name="rank 3")
    with caplog.at_level(logging.WARNING, logger="msd"):
        reporter.report({"c": 1.0})
        reporter.close(WAIT_S)
    assert "what rank 3 reported last was not taken: there is no source 'c'" in caplog.text


def test_a_run_that_does_not_answer_holds_up_no_end():
    never = threading.Event()
    reporter = Reporter(lambda losses: never.wait(WAIT_S), name="rank 0")
    reporter.report({"a": 1.0})
    reporter.close(0.01)
    never.set()


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({}, "report takes the loss by source such as"),
        ([1.0], "report takes the loss by source such as"),
        ({"a": "1.0"}, "the loss of 'a' must be a finite number, got '1.0'"),
        ({"a": float("inf")}, "the loss of 'a' must be a finite number, got 'inf'"),
        ({"a": None}, "the loss of 'a' must be a finite number, got 'None'"),
        ({1: 1.0}, r"sources are named by text, got 1 \(int\)"),
    ],
)
def test_what_is_no_report_is_refused_at_once(losses, message):
    with pytest.raises(ConfigError, match=message):
        losses_of(losses)


def test_numbers_of_other_kinds_are_plain_ones():
    import numpy as np

    found = losses_of({"a": np.float32(0.5), "b": np.array(2), "c": 3})
    assert found == {"a": 0.5, "b": 2.0, "c": 3.0}
    assert {type(value) for value in found.values()} == {float}
