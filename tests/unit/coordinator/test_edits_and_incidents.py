"""Edits are durable before they matter; rows that end processes; sources that do not deliver."""

import msgspec
import pytest
from driven_ranks import SOURCES, Ranks, make, of_kind

from msd.coordinator import StallTerms
from msd.coordinator.commands import Avoid, Examine, Fail, Isolate, Journal, Planned, Replicate, Warn
from msd.coordinator.events import (
    Journalled,
    NotJournalled,
    RowKilled,
    RowsEnded,
    StepAsked,
    TimePassed,
)
from msd.coordinator.standing import Stall
from msd.core.journal import SkipRows, Suspend
from msd.core.state import canonical_json
from msd.errors import ConfigError, EngineError
from msd.testing.tables import feed_of, steps_of

STEPS = range(1, 6)


def suspend(at_step: int, source: str = "web") -> Suspend:
    return Suspend(at_step=at_step, source=source, who="somebody")


def test_an_edit_is_journalled_and_copied_before_the_step_that_tells_of_it_is_planned():
    ranks = Ranks(make())
    coordinator = ranks.run.coordinator
    edit, commands = coordinator.edit(suspend(5))
    (journal,) = of_kind(Journal, commands)
    assert journal.edit == edit == msgspec.structs.replace(suspend(5), noted_at=3)
    assert of_kind(Replicate, commands)[-1].standing.edits == (edit,)
    asked = coordinator.handle_all([StepAsked(rank, ranks.sessions[rank], 0, 1) for rank in (0, 1)])
    assert not of_kind(Planned, asked)
    assert coordinator.waits_for == "an edit to be written to the journal"
    met = ranks.note(coordinator.handle(Journalled(journal.number)))
    assert [command.plan.step for command in of_kind(Planned, met)] == [3]
    assert coordinator.edits == (edit,)


def test_plans_are_those_of_a_planner_that_is_given_the_edit_at_the_same_step():
    ranks = Ranks(make())
    edit, commands = ranks.run.coordinator.edit(suspend(4))
    ranks.note(commands)
    ranks.ask_all(STEPS)
    planned = [command.plan for command in of_kind(Planned, ranks.met)]
    planner = ranks.run.new_planner(None)
    steps = steps_of(planner, feed_of(SOURCES, ranks.run.settings))
    for plan in planned:
        if planner.step == edit.noted_at:
            planner.apply(edit)
        alone = next(steps)
        assert (alone.digest, alone.progress) == (plan.digest, plan.progress)
    assert "web" not in {sample_id.source for sample_id in planned[5].sample_ids()}


def test_a_step_planned_again_after_an_edit_is_the_same_step(monkeypatch):
    for name, value in (("PLANS_KEPT", 2), ("POSITION_EVERY", 2)):
        monkeypatch.setattr(f"msd.coordinator.history.{name}", value)
    ranks = Ranks(make({"c0": (0, 1)}), ranks=(0,))
    for step in range(1, 12):
        ranks.asks(0, step)
        if step == 3:
            ranks.note(ranks.run.coordinator.edit(suspend(8))[1])
    known = {command.plan.step: command.plan for command in of_kind(Planned, ranks.met)}
    met = ranks.connect(1)
    for step in range(1, 12):
        met += ranks.asks(1, step)
    again = {c.plan.step: c.plan for c in met if hasattr(c, "plan")}
    assert set(again) >= set(range(9))
    for step, plan in again.items():
        assert (plan.digest, plan.progress) == (known[step].digest, known[step].progress)


def test_states_tell_of_an_edit_at_once():
    ranks = Ranks(make())
    edit, commands = ranks.run.coordinator.edit(suspend(9))
    ranks.note(commands)
    position = ranks.run.coordinator.progress_before(1)
    other = make().born_again(None)
    planner = ranks.run.new_planner(position)
    assert canonical_json(planner.state_dict()) == canonical_json(position)
    assert msgspec.convert(position["pending"], list[Suspend]) == [edit]
    assert other.progress_before(0) != position


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (suspend(2), "first .* is 3|first that it can reach is 3"),
        (suspend(7, "wbe"), "wbe"),
        (SkipRows(at_step=7, source="web", first=9, last=3), "9"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_to_whoever_asked(edit, words):
    ranks = Ranks(make())
    with pytest.raises(ConfigError, match=words):
        ranks.run.coordinator.edit(edit)
    assert ranks.run.coordinator.standing().edits == ()


def test_an_edit_that_comes_late_is_moved_if_the_caller_said_so():
    ranks = Ranks(make())
    edit, _ = ranks.run.coordinator.edit(suspend(0), move_late=True)
    assert (edit.at_step, edit.noted_at) == (3, 3)


def test_an_edit_that_could_not_be_written_takes_no_effect():
    ranks = Ranks(make())
    _, commands = ranks.run.coordinator.edit(suspend(3))
    (journal,) = of_kind(Journal, commands)
    met = ranks.happens(NotJournalled(journal.number, EngineError("the disk is full")))
    assert of_kind(Replicate, met)[-1].standing.edits == ()
    assert not of_kind(Fail, met + ranks.ask_all(STEPS))
    assert "web" in {sample_id.source for sample_id in ranks.run.coordinator.plan(4).sample_ids()}


def test_a_load_voids_edits_of_the_generation_before_it():
    ranks = Ranks(make())
    _, commands = ranks.run.coordinator.edit(suspend(4))
    (journal,) = of_kind(Journal, commands)
    ranks.load(0, ranks.run.coordinator.plan(0).progress)
    assert ranks.run.coordinator.handle(Journalled(journal.number)) == []
    assert ranks.run.coordinator.standing().edits == ()


def test_rows_that_were_in_hand_when_a_process_ended_are_isolated_once():
    ranks = Ranks(make())
    rows = (("web", 70), ("web", 71))
    met = ranks.happens(RowsEnded(rows, "SIGSEGV"))
    assert of_kind(Isolate, met) == [Isolate(rows)]
    assert of_kind(Replicate, met)[-1].standing.isolated == rows
    assert not of_kind(Isolate, ranks.happens(RowsEnded(rows, "SIGSEGV")))


def test_a_killed_row_is_journalled_then_avoided_then_asked_again():
    run = make()
    examine = next(c for c in of_kind(Examine, run.coordinator.begin()) if c.source == "books")
    killed = RowKilled("books", examine.start + 1, "SIGSEGV")
    (journal,) = of_kind(Journal, run.coordinator.handle(killed))
    assert (journal.edit.first, journal.edit.last, journal.edit.reason) == (1, 1, "killed")
    assert journal.edit.how == "SIGSEGV"
    commands = run.coordinator.handle(Journalled(journal.number))
    assert of_kind(Avoid, commands) == [Avoid("books", 1, 1, "killed")]
    assert (examine.source, examine.start) in {(c.source, c.start) for c in of_kind(Examine, commands)}
    # Heard once more, it is only said again what is known.
    again = run.coordinator.handle(killed)
    assert of_kind(Avoid, again) == [Avoid("books", 1, 1, "killed")]
    assert not of_kind(Journal, again)


def test_a_killed_row_that_cannot_be_journalled_ends_the_run():
    run = make()
    run.coordinator.begin()
    (journal,) = of_kind(Journal, run.coordinator.handle(RowKilled("books", 1, "SIGSEGV")))
    (fail,) = run.coordinator.handle(NotJournalled(journal.number, EngineError("the disk is full")))
    assert str(fail.error) == "the disk is full"


def test_a_row_of_a_planned_step_that_kills_when_it_is_examined_again_ends_the_run_by_name(monkeypatch):
    for name, value in (("PLANS_KEPT", 2), ("POSITION_EVERY", 2)):
        monkeypatch.setattr(f"msd.coordinator.history.{name}", value)
    ranks = Ranks(make({"c0": (0, 1)}), ranks=(0,))
    for step in range(1, 12):
        ranks.asks(0, step)
    _, commands = ranks.run.coordinator.connect(1)
    again = of_kind(Examine, commands)[0]
    (fail,) = of_kind(Fail, ranks.run.coordinator.handle(RowKilled(again.source, again.start, "no answer for 120 s")))
    assert f"source {again.source!r}" in str(fail.error)
    assert f"(ordinal {again.start}) is part of a planned step" in str(fail.error)


def test_news_of_a_row_that_no_step_waits_for_any_more_changes_nothing():
    ranks = Ranks(make())
    assert not ranks.happens(RowKilled("web", 0, "SIGSEGV"))
    ranks.ask_all(STEPS)


def starving(**terms) -> tuple:
    """A run that waits for a row of books, which does not come."""
    run = make(stalls={"books": StallTerms(**terms)})
    begun = of_kind(Examine, run.coordinator.begin())
    for examine in begun:
        if examine.source != "books":
            run.coordinator.handle(run.answer(examine))
    assert run.coordinator.waits_for == "row 0 of source 'books' on loader host a"
    assert run.coordinator.handle(TimePassed(100.0)) == []
    return run, begun


def test_a_wait_is_told_after_a_while_and_then_each_time_it_is_too_long():
    run, _ = starving(after_s=60.0)
    told = {s: of_kind(Warn, run.coordinator.handle(TimePassed(100.0 + s))) for s in (20, 31, 40, 61, 100, 121)}
    assert [s for s, warnings in told.items() if warnings] == [31, 61, 121]
    assert told[61][0].text == "planning has waited 61 s for row 0 of source 'books' on loader host a"


def test_a_source_that_does_not_deliver_is_suspended_at_the_step_that_waits_for_it():
    run, begun = starving(after_s=5.0, then="suspend")
    assert not run.coordinator.handle(TimePassed(104.0))
    commands = run.coordinator.handle(TimePassed(106.0))
    (journal,) = of_kind(Journal, commands)
    assert (journal.edit.source, journal.edit.at_step, journal.edit.who) == ("books", 0, "on_stall")
    assert "suspended from step 0 on" in of_kind(Warn, commands)[0].text
    met = run.settle(run.coordinator.handle(Journalled(journal.number)))
    met += run.settle(c for c in begun if c.source == "web")
    planned = of_kind(Planned, met)
    assert planned
    assert {sample_id.source for sample_id in planned[0].plan.sample_ids()} == {"web"}


def test_a_source_that_does_not_deliver_ends_a_run_that_says_stop():
    run, _ = starving(after_s=5.0, then="stop")
    (fail,) = of_kind(Fail, run.coordinator.handle(TimePassed(105.0)))
    assert str(fail.error).startswith("source 'books' did not deliver row 0 within 5 s and on_stall.then is stop")


def test_the_last_source_is_not_suspended_but_waited_for():
    run, _ = starving(after_s=5.0, then="suspend")
    _, commands = run.coordinator.edit(suspend(0, "web"))
    run.coordinator.handle(Journalled(of_kind(Journal, commands)[0].number))
    met = run.coordinator.handle(TimePassed(106.0))
    assert not of_kind(Journal, met)
    assert "cannot be suspended" in of_kind(Warn, met)[0].text


def starve(run, coordinator) -> None:
    """Answer all but books, as long as anything is asked."""
    waiting = of_kind(Examine, coordinator.begin())
    while others := [examine for examine in waiting if examine.source != "books"]:
        waiting = of_kind(Examine, coordinator.handle_all([run.answer(examine) for examine in others]))


def test_how_long_a_row_has_not_come_is_still_known_when_the_planner_is_replaced():
    run, _ = starving(after_s=5.0, then="stop")
    run.coordinator.handle(TimePassed(104.0))
    standing = run.coordinator.standing()
    assert standing.stall == Stall("books", 0, 4.0)
    again = run.born_again(standing)
    starve(run, again)
    assert again.handle(TimePassed(7.0)) == []
    (fail,) = of_kind(Fail, again.handle(TimePassed(8.5)))
    assert str(fail.error).startswith("source 'books' did not deliver row 0 within 6 s and on_stall.then is stop")


def replaced(lacking) -> tuple:
    """A run that stalls at step 4 after its planner was replaced, with what ranks say they lack."""
    ranks = Ranks(make(stalls={"books": StallTerms(5.0, "suspend")}))
    ranks.ask_all(range(1, 5))
    again = ranks.run.born_again(ranks.run.coordinator.standing())
    starve(ranks.run, again)
    assert (again.next_step, of_kind(Warn, again.handle(TimePassed(100.0)))) == (4, [])
    again.handle_all([StepAsked(rank, ranks.sessions[rank], 0, 4, step) for rank, step in lacking.items()])
    return ranks, again


def test_a_stalled_source_is_suspended_after_the_planner_was_replaced_at_a_step_that_nobody_has():
    ranks, again = replaced({0: 4, 1: 3})
    (journal,) = of_kind(Journal, again.handle(TimePassed(106.0)))
    assert (journal.edit.source, journal.edit.at_step, journal.edit.noted_at) == ("books", 4, 4)
    lacking = again.stall.ordinal
    planned = of_kind(Planned, ranks.run.settle(again.handle(Journalled(journal.number))))
    assert planned[0].plan.step == 4
    drawn = [sample_id for command in planned for sample_id in command.plan.sample_ids()]
    assert all(sample_id.ordinal < lacking for sample_id in drawn if sample_id.source == "books")


@pytest.mark.parametrize("lacking", [{}, {0: 4}, {0: 4, 1: 5}], ids=["unsaid", "one silent", "one has it"])
def test_a_step_that_a_rank_may_have_keeps_its_sources_and_that_is_told_once(lacking):
    ranks, again = replaced(lacking)
    met = [command for s in (106, 107, 120) for command in again.handle(TimePassed(float(s)))]
    assert not of_kind(Journal, met)
    assert ["may have been planned" in warning.text for warning in of_kind(Warn, met)] == [True]
    if 1 not in lacking:
        again.handle_all([StepAsked(rank, ranks.sessions[rank], 0, 4, 4) for rank in (0, 1)])
        assert of_kind(Journal, again.handle(TimePassed(121.0)))


def test_an_edit_reaches_the_first_step_that_ranks_lack_after_the_planner_was_replaced():
    _, again = replaced({0: 4, 1: 6})
    edit, _ = again.edit(suspend(2, "web"), move_late=True)
    assert edit.at_step == 6
