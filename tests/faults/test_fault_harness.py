"""What the tests of faults stand on: schedules come from their seeds, and what differs or stays is seen."""

import signal

import pytest
from fault_data import cast_of, undisturbed, write_config
from fault_outcome import Outcome
from fault_ranks import CHOSEN, Taken, choose
from fault_run import faulty
from fault_schedule import Fault, drawn, in_turn
from fault_services import Service, born
from processes import Program, programs

STEPS = 40


def test_a_schedule_comes_from_its_seed_and_keeps_its_bounds():
    cast = cast_of(shadows=1, compact=False)
    schedules = [drawn(seed, cast, first=10, last=90, apart=10) for seed in range(50)]
    assert schedules == [drawn(seed, cast, first=10, last=90, apart=10) for seed in range(50)]
    assert len(set(schedules)) > 40
    faults = [fault for schedule in schedules for fault in schedule]
    assert all(10 <= fault.at_step <= 90 for fault in faults)
    assert {fault.target for fault in faults} == {*cast.workers, *cast.others}
    assert {fault.how for fault in faults} == {"kill", "freeze", "pause", "term"}
    assert all(fault.how in cast.hows(fault.target) for fault in faults)
    assert any(len(schedule) > len({fault.at_step for fault in schedule}) for schedule in schedules)


def test_every_way_of_every_target_comes_once_in_turn():
    cast = cast_of()
    faults = in_turn(cast, first=5, apart=10)
    assert {(fault.target, fault.how) for fault in faults} == {
        (target, how) for target in (*cast.workers, *cast.others) for how in cast.hows(target)
    }
    assert [fault.at_step for fault in faults] == [5 + 10 * number for number in range(len(faults))]


def test_a_step_that_differs_or_is_missing_or_comes_twice_and_not_alike_is_told():
    outcome = Outcome()
    outcome.read({0: [Taken(0, "a", 0.1, 1.0), Taken(1, "b", 0.1, 2.0)]})
    outcome.check({(0, 0): "a", (1, 0): "b"})
    for expected in ({(0, 0): "a", (1, 0): "c"}, {(0, 0): "a"}, {(0, 0): "a", (1, 0): "b", (2, 0): "c"}):
        with pytest.raises(AssertionError, match="differ"):
            outcome.check(expected)
    again = Outcome()
    again.read({0: [Taken(0, "a", 0.1, 1.0), Taken(0, "c", 0.1, 2.0)]})
    with pytest.raises(AssertionError, match="step 0 of rank 0: a, then c"):
        again.check({(0, 0): "a"})


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.timeout(90)
def test_a_killed_host_is_struck_where_the_schedule_says_and_a_file_that_stays_is_seen(tmp_path, monkeypatch):
    config, killed = write_config(tmp_path / "data"), []
    with faulty(tmp_path, config) as run:
        run.begin(2, STEPS, pace_s=0.02)
        monkeypatch.setattr(Program, "stop", leaving_a_file(run, Program.stop))
        outcome = run.go_through([Fault(12, "msd-loader-1", "kill")])
        killed = [struck.fault.target for struck in outcome.struck]
    assert killed == ["msd-loader-1"]
    assert outcome.left == [f"file {run._temporary / 'msd-stays'}"]
    outcome.left.clear()
    outcome.check(undisturbed(config, STEPS))
    assert not run._temporary.exists()


def test_a_rank_of_another_run_that_calls_at_the_same_port_is_not_let_in(tmp_path):
    tokens = []
    for _ in range(2):
        with faulty(tmp_path, tmp_path / "run.yaml") as run:
            tokens.append(run.serve.env["MSD_TOKEN"])
    assert tokens[0] != tokens[1]


def test_a_process_whose_number_was_given_on_is_neither_ended_nor_told_of(tmp_path):
    with programs(tmp_path) as start:
        mine, others = (start(name, "-c", "import time; time.sleep(60)").process for name in ("mine", "others"))
        with faulty(tmp_path, tmp_path / "run.yaml") as run:
            run._seen = {mine.pid: born(mine.pid), others.pid: "earlier"}
            assert run.alive() == {mine.pid}
        assert mine.wait(10) == -signal.SIGKILL
        assert others.poll() is None


def test_ranks_start_again_from_the_last_step_that_each_of_them_kept_and_never_from_the_run_s_last(tmp_path):
    for rank, steps in enumerate([(0, 1, 2, 3), (0, 1, 3)]):
        (tmp_path / f"states-{rank}").mkdir()
        for step in steps:
            (tmp_path / f"states-{rank}" / f"{step:08d}.json").write_text(f"state after {step}")
    choose(tmp_path, 2, before=3)
    assert (tmp_path / CHOSEN).read_text() == "state after 1"


@pytest.mark.parametrize(("may_end", "starts"), [(False, 2), (True, 1)])
def test_a_program_that_has_done_all_is_started_again_only_where_it_is_to_serve_for_ever(tmp_path, may_end, starts):
    with programs(tmp_path) as start:
        service = Service(start, "one", ("-c", "print('done')"), {}, may_end=may_end)
        service.tick()
        service.program.wait(30)
        service.tick()
        assert (service.starts, service.is_wanted) == (starts, not may_end)
        assert "--- one.0 (ended with 0): done" in service.last_words


def leaving_a_file(run, stop):
    def stopped(program: Program, timeout_s: float = 15.0) -> int:
        (run._temporary / "msd-stays").touch()
        assert program.process.poll() != -signal.SIGKILL
        return stop(program, timeout_s)

    return stopped
