"""A coordinator that is born from what survivors know, and ranks that say where they stand."""

from dataclasses import replace

import pytest
from driven_ranks import Ranks, make, of_kind, plans_of

from msd.coordinator import RankStanding, Standing, merged
from msd.coordinator.commands import Assign, Avoid, Fail, Isolate, Journal, Planned, Refuse, Replicate, Rewind, Warn
from msd.coordinator.events import RanksStand, RowKilled, RowsEnded, StepAsked, TimePassed
from msd.core.journal import Suspend
from msd.core.state import fingerprint
from msd.errors import ConfigError, StateError

STEPS = range(1, 8)


def disturbed(steps=STEPS, **changes) -> Ranks:
    """Two ranks that came some way."""
    ranks = Ranks(make(**changes))
    ranks.ask_all(steps)
    return ranks


def at(rank: int, next_step: int, generation: int = 0, *, plans=None, **changes) -> RankStanding:
    """Where a rank stands, with the position of the undisturbed run there."""
    plans = plans_of(make(), next_step) if plans is None else plans
    progress = plans[next_step - 1].progress
    return RankStanding(rank=rank, generation=generation, next_step=next_step, progress=progress, **changes)


def copy_of(ranks: Ranks) -> Standing:
    return of_kind(Replicate, ranks.met)[-1].standing


def digests(commands) -> dict[int, str]:
    return {c.plan.step: c.plan.digest for c in of_kind(Assign, commands)}


def expect_undisturbed(assigned: dict[int, str]) -> None:
    plans = plans_of(make(), 1 + max(assigned))
    assert assigned == {step: plans[step].digest for step in assigned}


def test_with_all_that_was_known_everything_goes_on_where_it_stood():
    ranks = disturbed()
    standing = ranks.run.coordinator.standing()
    again = ranks.run.born_again(standing)
    assert again.standing().ranks == standing.ranks
    met = ranks.note(again.begin())
    assert {c.constructor for c in of_kind(Rewind, met)} == {"c0", "c1"}
    assert [c.plan.step for c in of_kind(Planned, met)] == [7, 8, 9], "nothing is planned that ranks have taken"
    met += ranks.ask_all(range(8, 12))
    expect_undisturbed(digests(met))
    assert not of_kind(Fail, met)


def test_a_standing_resumes_as_it_was_saved():
    ranks = disturbed()
    ranks.happens(RowsEnded((("web", 300),), "SIGSEGV"))
    standing = ranks.run.coordinator.standing()
    again = ranks.run.born_again(standing).standing()
    assert replace(again, num_sessions=standing.num_sessions) == standing


def test_with_copies_alone_nothing_is_planned_until_ranks_say_where_they_stand():
    ranks = disturbed()
    copy = copy_of(ranks)
    assert {rank.session for rank in copy.ranks} == {0}
    assert copy.positions == {}
    again = ranks.run.born_again(copy)
    assert not of_kind(Planned, ranks.note(again.begin()))
    met = ranks.connect(0, at(0, 7))
    assert [c.plan.step for c in of_kind(Planned, met)] == [7, 8, 9]
    met += ranks.connect(1, at(1, 6))
    met += ranks.asks(1, 7) + ranks.asks(1, 8) + ranks.asks(0, 8)
    assert set(digests(met)) == {6, 7, 8, 9, 10}
    expect_undisturbed(digests(met))


def test_a_rank_that_stands_ahead_is_reached_by_planning_and_compared():
    ranks = disturbed()
    ranks.run.born_again(copy_of(ranks))
    ranks.note(ranks.run.coordinator.begin())
    ranks.connect(1, at(1, 5))
    met = ranks.connect(0, at(0, 9))
    assert not of_kind(Fail, met)
    assert not of_kind(Fail, ranks.asks(1, 6) + ranks.asks(1, 7))


def test_a_rank_whose_position_is_another_than_planning_comes_to_ends_the_run_by_name():
    ranks = disturbed()
    ranks.run.born_again(copy_of(ranks))
    ranks.note(ranks.run.coordinator.begin())
    plans = plans_of(make(), 9)
    ranks.connect(1, at(1, 5, plans=plans))
    other = {**plans[8].progress, "carry": plans[3].progress["carry"]}
    ranks.connect(0, replace(at(0, 9, plans=plans), progress=other))
    (fail,) = of_kind(Fail, [c for step in (6, 7) for c in ranks.asks(1, step)])[:1]
    assert str(fail.error).startswith("rank 0 stands at step 9 with another position")


def test_a_rank_that_brings_another_position_than_is_known_is_refused():
    ranks = disturbed()
    plans = plans_of(make(), 7)
    with pytest.raises(StateError, match="rank 0 stands at step 6 with another position than this run has there"):
        ranks.connect(0, replace(at(0, 6, plans=plans), progress=plans[3].progress))
    assert not of_kind(Fail, ranks.asks(1, 8)), "the others are not disturbed"


def test_ranks_that_a_constructor_tells_of_count_as_connected_in_their_sessions():
    ranks = disturbed()
    stands = [replace(at(rank, 7), session=ranks.sessions[rank]) for rank in (0, 1)]
    ranks.run.born_again(copy_of(ranks))
    met = ranks.note(ranks.run.coordinator.begin())
    met += ranks.happens(RanksStand((stands[0],)), RanksStand(tuple(stands)))
    assert [c.plan.step for c in of_kind(Planned, met)] == [7, 8, 9]
    assert ranks.run.coordinator.generations.ranks_at(7) == [0, 1]
    assert [c.plan.step for c in of_kind(Planned, ranks.asks(0, 8) + ranks.asks(1, 8))] == [10]


def test_what_a_constructor_tells_of_a_rank_that_came_again_since_changes_nothing():
    ranks = disturbed()
    ranks.run.born_again(copy_of(ranks))
    ranks.note(ranks.run.coordinator.begin())
    ranks.connect(0, at(0, 7))
    session = ranks.sessions[0]
    ranks.happens(RanksStand((replace(at(0, 3), session=1),)))
    assert ranks.run.coordinator.rank_standing(0).session == session
    assert ranks.run.coordinator.generations.slowest == 7


def test_a_rank_of_another_run_that_a_constructor_tells_of_is_refused_alone():
    ranks = disturbed()
    plans = plans_of(make(), 7)
    stray = replace(at(0, 6, plans=plans), session=99, progress=plans[2].progress)
    met = ranks.happens(RanksStand((stray,)))
    (refuse,) = of_kind(Refuse, met)
    assert (refuse.constructor, refuse.rank, refuse.session) == ("c0", 0, 99)
    assert not of_kind(Fail, met)


def test_a_load_survives_the_planner_and_is_not_counted_twice():
    ranks = disturbed()
    state = ranks.run.coordinator.plan(3).progress
    ranks.load(0, state, number=1)
    again = ranks.run.born_again(copy_of(ranks))
    ranks.note(again.begin())
    assert (again.generations.generation, again.first_step) == (1, 4)
    ranks.connect(0, RankStanding(rank=0, generation=0, next_step=7))
    assert not of_kind(Rewind, ranks.load(0, state, number=1)), "its answer was lost: it is the same load"
    ranks.connect(1, RankStanding(rank=1, generation=0, next_step=7))
    assert not of_kind(Rewind, ranks.load(1, state, number=1))
    assert of_kind(Rewind, ranks.load(1, state, number=2))
    assert again.generations.generation == 2


def test_edits_and_suspects_survive_the_planner():
    ranks = disturbed()
    ranks.happens(RowsEnded((("web", 300),), "SIGSEGV"), RowKilled("web", 301, "SIGSEGV"))
    edits = ranks.run.coordinator.edits
    assert len(edits) == 1
    again = ranks.run.born_again(copy_of(ranks))
    begun = again.begin()
    assert of_kind(Avoid, begun) == [Avoid("web", 301, 301, "killed")]
    assert of_kind(Isolate, begun) == [Isolate((("web", 300),))]
    assert again.edits == edits


def test_a_killed_row_is_journalled_once_a_rank_has_said_where_it_stands():
    ranks = disturbed()
    ranks.note(ranks.run.born_again(copy_of(ranks)).begin())
    killed = RowKilled("web", 301, "SIGSEGV")
    assert not ranks.happens(killed, TimePassed(0.1)), "nobody has said yet how far others can have planned"
    ranks.connect(0, at(0, 7))
    (journal,) = of_kind(Journal, ranks.happens(TimePassed(0.2)))
    assert (journal.edit.first, journal.edit.how) == (301, "SIGSEGV")
    assert not of_kind(Journal, ranks.happens(TimePassed(0.3)))


def test_the_newest_generation_and_the_longest_journal_are_kept_of_many_words():
    ranks = disturbed()
    old = ranks.run.coordinator.standing()
    ranks.load(0, ranks.run.coordinator.plan(3).progress)
    new = ranks.run.coordinator.standing()
    late = replace(new, ranks=(replace(new.ranks[1], next_step=6, progress={"step": 6}),))
    both = merged([late, old, new])
    assert (both.generation, both.first_step) == (1, 4)
    assert [rank.next_step for rank in both.ranks] == [4, 6]
    assert both.positions[6] == {"step": 6}
    assert merged([]) is None


# A run that was started again.


def test_a_run_that_has_not_begun_goes_on_where_a_rank_stands():
    ranks = Ranks(make(), ranks=())
    met = ranks.connect(0, at(0, 7, 2, num_loads=2))
    assert {(c.constructor, c.generation) for c in of_kind(Rewind, met)} == {("c0", 2), ("c1", 2)}
    assert "the run goes on at step 7 of generation 2, where rank 0 stands" in {c.text for c in of_kind(Warn, met)}
    met += ranks.connect(1, at(1, 6, 2, num_loads=2))
    met += ranks.asks(1, 7) + ranks.asks(0, 8) + ranks.asks(1, 8)
    assert set(digests(met)) >= {6, 7, 8, 9, 10}
    expect_undisturbed({step: digest for step, digest in digests(met).items() if step >= 6})
    assert ranks.run.coordinator.first_step == 6


def test_a_rank_that_came_first_and_stands_behind_the_others_stays_where_it_is():
    ranks = Ranks(make(), ranks=())
    ranks.connect(1, at(1, 3))
    met = ranks.connect(0, at(0, 9))
    assert not of_kind(Refuse, met)
    generations = ranks.run.coordinator.generations
    assert (generations.ranks_at(3), generations.ranks_at(9)) == ([1], [0])
    assert [c.plan.step for c in of_kind(Assign, met) if c.constructor == "c1"] == [3, 4, 5]
    expect_undisturbed(digests(met + ranks.asks(1, 4) + ranks.asks(1, 5)))


def test_a_rank_that_stood_a_step_behind_may_come_when_the_first_has_gone_on_alone():
    ranks = Ranks(make(), ranks=())
    ranks.connect(0, at(0, 7))
    for step in range(8, 28):
        ranks.asks(0, step)
    met = ranks.connect(1, at(1, 6))
    assert not of_kind(Fail, met)
    assert ranks.run.coordinator.generations.next_steps() == [6, 27]
    met += ranks.asks(1, 7) + ranks.asks(1, 8)
    assert {c.plan.step for c in of_kind(Assign, met) if c.constructor == "c1"} >= {6, 7, 8}
    expect_undisturbed(digests(met))


def test_where_the_first_has_gone_alone_does_not_count_though_its_connection_is_made_again():
    ranks = Ranks(make(), ranks=())
    ranks.connect(0, at(0, 10))
    for step in range(11, 28):
        ranks.asks(0, step)
    ranks.connect(0, at(0, 27))
    assert not of_kind(Fail, ranks.connect(1, at(1, 8)))
    with pytest.raises(StateError, match="further apart than 6 steps"):
        ranks.connect(1, at(1, 1))


def test_ranks_further_apart_than_can_be_are_refused_with_their_steps():
    ranks = Ranks(make(), ranks=())
    ranks.connect(0, at(0, 20))
    with pytest.raises(StateError, match=r"rank 1 stands at step 3, .*\(rank 0 at step 20\), further apart than 6"):
        ranks.connect(1, at(1, 3))


def test_a_run_that_began_and_went_on_refuses_who_stands_elsewhere():
    ranks = Ranks(make(), ranks=(1,))
    ranks.asks(1, 1)
    with pytest.raises(StateError, match=r"rank 0 stands at step 20 .* began again at step 0 .*rank 1 at step 1"):
        ranks.connect(0, at(0, 20))
    assert not of_kind(Fail, ranks.asks(1, 2))


def test_a_rank_that_comes_without_a_state_to_others_that_went_on_must_load():
    ranks = Ranks(make(), ranks=())
    ranks.connect(0, at(0, 7))
    (refuse,) = of_kind(Refuse, ranks.connect(1))
    assert (refuse.constructor, refuse.rank, refuse.session) == ("c1", 1, ranks.sessions[1])
    assert "rank 1 came without a state" in str(refuse.error)
    assert "rank 0 at step 7" in str(refuse.error)
    assert ranks.run.coordinator.handle(StepAsked(1, ranks.sessions[1], 0, 9)) == []
    assert ranks.run.coordinator.generations.next_steps() == [7]
    state = plans_of(make(), 3)[2].progress
    met = ranks.load(1, state)
    assert of_kind(Rewind, met)
    assert ranks.run.coordinator.generations.ranks_at(3) == [0, 1]
    assert not of_kind(Rewind, ranks.load(0, state)), "the others join"


def test_a_rank_that_had_come_without_a_state_is_refused_once_another_brings_one():
    ranks = Ranks(make(), ranks=(1,))
    met = ranks.connect(0, at(0, 7))
    (refuse,) = of_kind(Refuse, met)
    assert (refuse.rank, refuse.session) == (1, ranks.sessions[1])
    assert [r.rank for r in ranks.run.coordinator.standing().ranks if r.is_held] == [1]


def test_a_run_that_resumed_from_its_store_is_followed_by_fresh_ranks():
    start = plans_of(make(), 5)[4].progress
    standing = Standing(
        generation=0, first_step=5, start=start, digest=fingerprint(start), is_resumed=True, loads_before=0
    )
    ranks = Ranks(make(), ranks=())
    ranks.met = ranks.note(ranks.run.born_again(standing).begin())
    ranks.connect(0)
    ranks.connect(1)
    ranks.ask_all((6, 7))
    expect_undisturbed(digests(ranks.met))
    assert min(digests(ranks.met)) == 5


def test_a_mesh_changes_at_a_step_boundary_and_all_ranks_are_fresh():
    ranks = disturbed()
    position = ranks.run.coordinator.plan(6).progress
    standing = Standing(
        generation=1,
        first_step=7,
        start=position,
        digest=fingerprint(position),
        loads_before=1,
        num_sessions=2,
    )
    again = ranks.run.born_again(standing, constructors={"c0": (0, 1)})
    ranks.note(again.begin())
    for rank in (0, 1):
        ranks.connect(rank)
    assert again.generations.ranks_at(7) == [0, 1]
    assert of_kind(Rewind, ranks.load(0, plans_of(make(), 2)[1].progress)), "its first load opens a generation"
    assert again.generations.generation == 2


def test_a_restore_moves_all_ranks_and_their_next_load_opens_another_generation():
    ranks = disturbed()
    state = plans_of(make(), 3)[2].progress
    met = ranks.note(ranks.run.coordinator.restore(state))
    assert of_kind(Rewind, met)
    assert ranks.run.coordinator.generations.ranks_at(3) == [0, 1]
    ranks.load(0, state, number=1)
    ranks.load(1, state, number=1)
    assert ranks.run.coordinator.generations.generation == 2


def test_an_edit_reaches_no_step_that_the_planner_before_may_have_planned():
    ranks = disturbed()
    copy = copy_of(ranks)
    again = ranks.run.born_again(copy)
    ranks.note(again.begin())
    edit = Suspend(at_step=0, source="web")
    with pytest.raises(ConfigError, match="no rank has said yet where it stands"):
        again.edit(edit, move_late=True)
    ranks.connect(0, at(0, 7))
    with pytest.raises(ConfigError, match="the first step that it can reach is 10"):
        again.edit(edit)
    moved, _ = again.edit(edit, move_late=True)
    assert (moved.at_step, moved.noted_at) == (10, 10)
    ranks.connect(1, at(1, 8))
    assert again.edit(edit, move_late=True)[0].noted_at == 11
