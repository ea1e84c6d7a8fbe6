from dataclasses import replace

from msd.coordinator.roster import BUDGET_S, MOST_LOSSES, Roster
from msd.coordinator.staff import (
    AddWorkers,
    Dismiss,
    Fill,
    GiveUp,
    HostDrained,
    HostsWanted,
    KillWorker,
    PostAnswered,
    PostLost,
    PostSilent,
    Probe,
    StartWorker,
    Vacate,
    Worker,
    WorkerAnswered,
    WorkerCame,
    WorkerEnded,
    WorkerLost,
    in_order,
    split,
)

OWN = ["msd-control", "msd-loader-0", "msd-loader-1"]
SILENCE_S = 3.0
DEADLINE_S = 60.0


class Cluster:
    """Workers by name, each time at another address; and the roster of a run on them."""

    def __init__(self, *names: str, constructors=("constructor-0",), hosts=2, shadows=0, own=()) -> None:
        self.roster = Roster(num_hosts=hosts, num_shadows=shadows, own=own, silence_s=SILENCE_S, deadline_s=DEADLINE_S)
        self.now_s = 0.0
        self.num_made = 0
        self.at = {}
        self.epochs = {}
        workers = [self.worker(name) for name in names]
        self.begun = self.noted(self.roster.begin(list(constructors), workers))

    def worker(self, name: str) -> Worker:
        self.num_made += 1
        self.at[name] = Worker(name, f"tcp://h:{self.num_made}", "h")
        return self.at[name]

    def noted(self, commands: list) -> list:
        self.epochs |= {command.post: command.epoch for command in commands if isinstance(command, Fill)}
        return commands

    def happens(self, *events, after_s: float = 0.0) -> list:
        self.now_s += after_s
        return self.noted(self.roster.handle(events, self.now_s))

    def comes(self, name: str, after_s: float = 0.0) -> list:
        return self.happens(WorkerCame(self.worker(name)), after_s=after_s)

    def dies(self, name: str, how: str = "SIGKILL", after_s: float = 0.0) -> list:
        return self.happens(WorkerLost(self.at[name].address, how), after_s=after_s)

    def silent(self, post: str, after_s: float = 0.0) -> list:
        return self.happens(PostSilent(post, self.epochs[post]), after_s=after_s)


def own(**changes) -> Cluster:
    return Cluster(*OWN, own=OWN, **changes)


def filled(commands: list) -> dict[str, str]:
    """Posts and the workers that are to hold them; shadows in brackets."""
    return {
        command.post: f"({command.worker.name})" if command.is_shadow else command.worker.name
        for command in commands
        if isinstance(command, Fill)
    }


def vacated(commands: list) -> list[str]:
    return [command.post for command in commands if isinstance(command, Vacate)]


def others(commands: list) -> list:
    return [command for command in commands if not isinstance(command, Fill | Vacate)]


def test_at_the_start_posts_go_to_the_workers_that_are_named_for_them():
    names = ["msd-loader-0", "msd-planner", "msd-control-1", "msd-loader-1", "msd-control-0"]
    begun = Cluster(*names, constructors=("c0", "c1")).begun
    assert filled(begun) == {
        "planner": "msd-planner",
        "c0": "msd-control-0",
        "c1": "msd-control-1",
        "msd-loader-0": "msd-loader-0",
        "msd-loader-1": "msd-loader-1",
    }
    assert {command.epoch for command in begun} == {1}


def test_where_no_worker_is_named_for_it_the_first_plans_and_constructs_and_the_others_load():
    assert filled(Cluster("b", "a", "c").begun) == {"planner": "a", "constructor-0": "a", "b": "b", "c": "c"}


def test_runs_of_constructors_lie_on_the_same_worker_in_the_order_of_names():
    begun = Cluster("msd-control-2", "msd-control-10", "x", constructors=("c0", "c1", "c2", "c3"), hosts=1).begun
    assert [filled(begun)[f"c{number}"] for number in range(4)] == [*["msd-control-2"] * 2, *["msd-control-10"] * 2]


def test_hosts_beyond_those_that_load_stand_by_and_workers_beyond_those_are_spare():
    begun = Cluster("msd-control", "a", "b", "c", "d", shadows=1).begun
    assert filled(begun) == {
        "planner": "msd-control", "constructor-0": "msd-control", "a": "a", "b": "b", "c": "(c)"
    }  # fmt: skip


def test_a_lost_process_of_ours_is_started_again_and_holds_its_posts_under_new_epochs():
    cluster = own()
    lost = cluster.dies("msd-control")
    assert vacated(lost) == ["planner", "constructor-0"]
    assert others(lost) == [StartWorker("msd-control")]
    assert filled(lost) == {}
    back = cluster.comes("msd-control", after_s=1.5)
    assert filled(back) == {"planner": "msd-control", "constructor-0": "msd-control"}
    assert {command.epoch for command in back} == {2}
    assert cluster.roster.next_term == 3


def test_what_is_told_of_a_loss_says_how_it_ended():
    (told, *_) = own().dies("msd-loader-1", "SIGSEGV")
    assert told == Vacate("msd-loader-1", "host", 1, "msd-loader-1", "SIGSEGV")


def test_a_lost_host_is_replaced_by_the_process_that_is_started_again():
    cluster = own()
    assert others(cluster.dies("msd-loader-0")) == [StartWorker("msd-loader-0")]
    assert filled(cluster.comes("msd-loader-0")) == {"msd-loader-0": "msd-loader-0"}


def test_a_lost_host_is_replaced_by_a_spare_worker_at_once():
    cluster = Cluster("msd-control", "a", "b", "spare")
    assert filled(cluster.dies("a")) == {"spare": "spare"}
    assert filled(cluster.comes("a")) == {}


def test_a_worker_that_comes_when_all_posts_are_held_is_spare():
    assert filled(Cluster("msd-control", "a", "b").comes("more")) == {}


def test_the_process_that_takes_the_place_of_a_spent_shadow_stands_by():
    cluster = Cluster("msd-control", "a", "b", "c", shadows=1)
    assert filled(cluster.dies("a")) == {}  # The shadow has its rows.
    assert filled(cluster.comes("a")) == {"a": "(a)"}


def test_where_more_hosts_were_lost_than_stood_by_the_first_that_comes_loads():
    cluster = Cluster("msd-control", "a", "b", "c", shadows=1)
    cluster.dies("a")
    cluster.dies("b")
    assert filled(cluster.comes("x")) == {"x": "x"}
    assert filled(cluster.comes("y")) == {"y": "(y)"}


def test_a_constructor_goes_to_another_control_worker_at_once():
    cluster = Cluster("msd-control-0", "msd-control-1", "a", "b", constructors=("c0", "c1"))
    assert filled(cluster.dies("msd-control-1")) == {"c1": "msd-control-0"}


def test_a_planner_whose_own_process_is_gone_goes_to_a_control_worker_at_once():
    cluster = Cluster("msd-control", "msd-planner", "a", "b")
    assert filled(cluster.dies("msd-planner")) == {"planner": "msd-control"}
    assert filled(cluster.comes("msd-planner")) == {}
    assert filled(cluster.dies("msd-control")) == {"planner": "msd-planner", "constructor-0": "msd-planner"}


def test_a_post_for_which_no_worker_is_named_goes_to_a_spare_one():
    cluster = Cluster("a", "b", "c", "spare")
    assert filled(cluster.dies("a")) == {"planner": "spare", "constructor-0": "spare"}


def test_without_any_spare_one_a_post_waits_a_while_and_then_takes_whom_there_is():
    cluster = Cluster("msd-control", "a", "b")
    assert filled(cluster.dies("msd-control")) == {}
    assert filled(cluster.happens(after_s=SILENCE_S / 2)) == {}
    # The least loaded each: two posts go to two workers.
    assert filled(cluster.happens(after_s=SILENCE_S)) == {"planner": "b", "constructor-0": "a"}


def test_a_planner_waits_for_a_host_since_it_could_plan_nothing():
    cluster = Cluster("msd-control", "a", hosts=1)
    cluster.dies("a")
    cluster.dies("msd-control")
    assert filled(cluster.comes("msd-control")) == {"constructor-0": "msd-control"}
    assert filled(cluster.comes("b")) == {"b": "b", "planner": "msd-control"}


def test_a_process_of_ours_is_waited_for_longer_since_it_is_on_its_way():
    cluster = own()
    cluster.dies("msd-control")
    assert filled(cluster.happens(after_s=2 * SILENCE_S)) == {}
    assert set(filled(cluster.happens(after_s=20 * SILENCE_S))) == {"planner", "constructor-0"}


def test_a_silent_planner_of_ours_is_killed_once_and_replaced_when_it_is_gone():
    cluster = own()
    assert cluster.silent("planner") == [KillWorker("msd-control", "planner gave no answer for 3 s")]
    assert cluster.silent("constructor-0") == []
    lost = cluster.dies("msd-control", "SIGKILL")
    assert vacated(lost) == ["planner", "constructor-0"]
    assert lost[0].how == "planner gave no answer for 3 s"
    assert filled(cluster.comes("msd-control"))["planner"] == "msd-control"
    assert len(cluster.silent("planner")) == 1


def test_a_silent_planner_of_somebody_elses_process_is_replaced_elsewhere_and_its_process_given_nothing():
    cluster = Cluster("msd-control-0", "msd-control-1", "a", "b")
    silent = cluster.silent("planner")
    assert vacated(silent) == ["planner"]
    assert silent[0].how == "no answer for 3 s"
    assert filled(silent) == {"planner": "msd-control-1"}
    assert [command.worker.name for command in others(silent)] == ["msd-control-0"]
    assert filled(cluster.silent("constructor-0")) == {"constructor-0": "msd-control-1"}
    assert filled(cluster.dies("msd-control-1")) == {}


def test_a_process_of_somebody_elses_that_answers_again_is_given_posts_again():
    cluster = Cluster("msd-control-0", "msd-control-1", "a", "b")
    assert Probe(cluster.at["msd-control-0"]) in cluster.silent("planner")
    cluster.happens(WorkerAnswered(cluster.at["msd-control-0"].address, incarnation=7))
    assert filled(cluster.dies("msd-control-1")) == {}
    back = cluster.happens(WorkerAnswered(cluster.at["msd-control-0"].address, incarnation=0))
    assert filled(back) == {"planner": "msd-control-0"}


def test_a_worker_that_comes_back_at_its_address_takes_part_whatever_is_heard_late_of_the_one_before():
    cluster = Cluster("msd-control", "a", "b")
    again = replace(cluster.at["a"], incarnation=1)
    came = cluster.happens(WorkerCame(again))
    assert vacated(came) == ["a"]
    assert filled(came) == {"a": "a"}
    assert cluster.happens(WorkerLost(again.address, "SIGKILL", incarnation=0)) == []
    assert vacated(cluster.happens(WorkerLost(again.address, "SIGKILL", incarnation=1))) == ["a"]


def test_a_worker_that_is_lost_again_before_it_held_anything_is_lost():
    cluster = Cluster("msd-control", "a", "b", "spare")
    address = cluster.at["spare"].address
    events = [WorkerLost(address, "x"), WorkerCame(Worker("spare", address, "h", 1)), WorkerLost(address, "y", True, 1)]
    assert cluster.happens(*events) == []
    assert filled(cluster.dies("a")) == {}


def test_a_silent_host_of_ours_is_killed_only_after_long():
    cluster = own()
    assert cluster.silent("msd-loader-0") == []
    assert cluster.happens(after_s=SILENCE_S) == []
    assert cluster.happens(after_s=SILENCE_S) == [KillWorker("msd-loader-0", "msd-loader-0 gave no answer for 9 s")]
    assert cluster.happens(after_s=SILENCE_S) == []


def test_a_host_that_was_only_slow_is_left_alone():
    cluster = own()
    cluster.silent("msd-loader-0")
    assert cluster.happens(PostAnswered("msd-loader-0", 1), after_s=SILENCE_S) == []
    assert cluster.happens(after_s=9 * SILENCE_S) == []


def test_a_silent_host_of_somebody_elses_process_is_replaced_by_a_spare_one_and_may_come_back():
    cluster = Cluster("msd-control", "a", "b", "spare")
    assert filled(cluster.silent("a")) == {"spare": "spare"}
    assert cluster.happens(PostAnswered("a", 1)) == []


def test_what_is_heard_late_of_a_post_that_was_filled_again_changes_nothing():
    cluster = own()
    cluster.dies("msd-control")
    cluster.comes("msd-control")
    assert cluster.happens(PostLost("planner", 1, "late"), PostSilent("planner", 1), PostAnswered("planner", 1)) == []


def test_an_actor_that_is_gone_or_could_not_be_made_is_made_again_where_it_was():
    cluster = own()
    lost = cluster.happens(PostLost("constructor-0", 1, "it could not be made"))
    assert vacated(lost) == ["constructor-0"]
    assert filled(lost) == {"constructor-0": "msd-control"}
    assert lost[-1].epoch == 2


def test_a_loss_that_is_told_twice_is_one():
    cluster = own()
    first = cluster.at["msd-loader-0"].address
    cluster.dies("msd-loader-0")
    assert cluster.happens(WorkerLost(first, "SIGKILL")) == []


def test_a_process_that_ends_before_it_was_there_is_started_again():
    cluster = own()
    cluster.dies("msd-loader-0")
    assert cluster.happens(WorkerEnded("msd-loader-0", "exit status 1")) == [StartWorker("msd-loader-0")]


def test_one_loss_too_many_in_a_short_time_ends_the_run_and_tells_how_each_ended():
    cluster = own()
    for _ in range(MOST_LOSSES):
        assert not any(isinstance(command, GiveUp) for command in cluster.dies("msd-loader-0", after_s=1.0))
        cluster.comes("msd-loader-0")
    *_, last = cluster.dies("msd-loader-0", "SIGSEGV", after_s=1.0)
    assert isinstance(last, GiveUp)
    assert last.why.startswith("msd-loader-0 was lost 6 times within 60 s (SIGKILL, SIGKILL,")
    assert "SIGSEGV)" in last.why
    assert cluster.comes("msd-loader-0") == []


def test_losses_that_are_far_apart_never_end_the_run():
    cluster = own()
    for _ in range(4 * MOST_LOSSES):
        assert others(cluster.dies("msd-loader-0", after_s=BUDGET_S / MOST_LOSSES)) == [StartWorker("msd-loader-0")]
        cluster.comes("msd-loader-0")


def test_a_process_that_ends_itself_because_of_a_row_that_is_left_out_from_then_on_is_not_counted():
    cluster = own()
    for _ in range(2 * MOST_LOSSES):
        lost = WorkerLost(cluster.at["msd-loader-0"].address, "exit status 87", is_counted=False)
        assert others(cluster.happens(lost, after_s=1.0)) == [StartWorker("msd-loader-0")]
        cluster.comes("msd-loader-0")


def test_a_process_that_never_comes_up_ends_the_run_too():
    cluster = own()
    cluster.dies("msd-loader-0")
    ended = [cluster.happens(WorkerEnded("msd-loader-0", "exit status 1")) for _ in range(MOST_LOSSES)]
    assert [isinstance(commands[-1], GiveUp) for commands in ended] == [False] * (MOST_LOSSES - 1) + [True]


def test_a_post_that_nobody_can_hold_ends_the_run_at_the_deadline():
    cluster = Cluster("msd-control", "a", hosts=1)
    cluster.dies("msd-control")
    cluster.dies("a")
    assert cluster.happens(after_s=DEADLINE_S) == []
    (last,) = cluster.happens(after_s=1.0)
    assert last == GiveUp(
        "planner is gone and no Dask worker came within 60 s to take its place; start one with `dask worker`, then the "
        "run again"
    )


def test_when_all_was_lost_with_the_scheduler_everything_is_filled_anew_and_no_epoch_comes_again():
    cluster = Cluster("msd-control", "a", "b")
    again = cluster.roster.begin(["constructor-0"], [cluster.worker(name) for name in ("b", "msd-control")])
    assert filled(again) == {"planner": "msd-control", "constructor-0": "msd-control", "b": "b"}
    assert {command.epoch for command in again} == {2}


def test_a_move_to_another_mesh_fills_planner_and_constructors_anew_and_leaves_the_hosts():
    cluster = Cluster("msd-control-0", "msd-control-1", "a", "b")
    moved = cluster.roster.move(["constructor-0", "constructor-1"], cluster.now_s)
    assert filled(moved) == {
        "planner": "msd-control-0", "constructor-0": "msd-control-0", "constructor-1": "msd-control-1"
    }  # fmt: skip
    assert {command.post: command.epoch for command in moved} == {
        "planner": 2, "constructor-0": 2, "constructor-1": 1
    }  # fmt: skip


def test_workers_are_sorted_by_number():
    names = ["msd-control-10", "msd-control-2", "b", "a"]
    assert [w.name for w in in_order(Worker(name, "tcp://h:1", "h") for name in names)] == [
        "a", "b", "msd-control-2", "msd-control-10"
    ]  # fmt: skip
    control, planner, loading = split(in_order(Worker(name, f"tcp://{name}", "h") for name in names))
    assert [worker.name for worker in control] == ["msd-control-2", "msd-control-10"]
    assert planner == control[0]
    assert [worker.name for worker in loading] == ["a", "b"]


# Hosts that come and go by somebody's wish.


def test_more_hosts_of_our_own_are_started_and_hold_loaders_when_they_come():
    cluster = own()
    assert cluster.happens(HostsWanted(4)) == [StartWorker("msd-loader-2"), StartWorker("msd-loader-3")]
    assert cluster.happens(HostsWanted(4)) == [], "they are on their way"
    assert filled(cluster.comes("msd-loader-2")) == {"msd-loader-2": "msd-loader-2"}
    assert filled(cluster.comes("msd-loader-3")) == {"msd-loader-3": "msd-loader-3"}
    assert cluster.dies("msd-loader-3")[-1] == StartWorker("msd-loader-3"), "it is one of the run's own now"


def test_one_more_is_no_shadow_where_one_stands_by_already():
    names = [*OWN, "msd-loader-2"]
    cluster = Cluster(*names, own=names, shadows=1)
    assert filled(cluster.begun)["msd-loader-2"] == "(msd-loader-2)"
    assert cluster.happens(HostsWanted(3)) == [StartWorker("msd-loader-3")]
    assert filled(cluster.comes("msd-loader-3")) == {"msd-loader-3": "msd-loader-3"}
    assert cluster.roster.stands_by("msd-loader-2")
    assert not cluster.roster.stands_by("msd-loader-3")
    cluster.dies("msd-loader-0")
    assert not cluster.roster.stands_by("msd-loader-2"), "it has taken over"
    assert filled(cluster.comes("msd-loader-0")) == {"msd-loader-0": "(msd-loader-0)"}


def test_a_drained_host_is_dismissed_and_its_end_is_no_loss():
    cluster = own()
    (dismissed,) = cluster.happens(HostDrained("msd-loader-1", cluster.epochs["msd-loader-1"]))
    assert dismissed == Dismiss("msd-loader-1", cluster.at["msd-loader-1"])
    assert cluster.roster.num_hosts == 1
    assert cluster.happens(after_s=1.0) == [], "nothing takes its place"
    assert cluster.dies("msd-loader-1") == [], "nor when its process has ended"
    # Under another name: word of the one before may come late.
    assert cluster.happens(HostsWanted(2)) == [StartWorker("msd-loader-2")]


def test_word_of_a_drained_host_that_was_replaced_meanwhile_dismisses_nobody():
    cluster = own()
    before = cluster.epochs["msd-loader-1"]
    cluster.dies("msd-loader-1")
    cluster.comes("msd-loader-1")
    assert cluster.happens(HostDrained("msd-loader-1", before)) == []
    assert cluster.roster.num_hosts == 2


def test_the_last_host_stays():
    cluster = own()
    cluster.happens(HostDrained("msd-loader-1", 1))
    assert cluster.happens(HostDrained("msd-loader-0", 1)) == []


def test_a_drained_host_of_a_cluster_of_somebody_else_stays_idle_and_is_taken_again():
    cluster = Cluster("a", "b", "c")
    assert cluster.happens(HostDrained("c", cluster.epochs["c"])) == [Dismiss("c", cluster.at["c"])]
    assert cluster.happens(after_s=1.0) == []
    assert cluster.roster.num_idle == 1
    assert filled(cluster.happens(HostsWanted(2))) == {"c": "c"}


def test_idle_workers_are_taken_before_more_are_asked_for():
    cluster = Cluster("a", "b", "c", "d", hosts=2)
    assert cluster.roster.num_idle == 1
    commands = cluster.happens(HostsWanted(4))
    assert AddWorkers(5) in commands
    assert filled(commands) == {"d": "d"}
    assert filled(cluster.comes("e")) == {"e": "e"}


def test_fewer_hosts_come_of_drained_ones_alone():
    cluster = own()
    assert cluster.happens(HostsWanted(1)) == []
    assert cluster.roster.num_hosts == 2
