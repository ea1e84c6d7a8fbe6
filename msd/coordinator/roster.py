"""Who holds which post of a run: processes come and go, posts are held again. No I/O, no clock, no thread.

A post that is lost is filled again, under a new epoch, by the worker that suits it best; which rows a host prepares is
the coordinator's matter.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msd.coordinator.staff import (
    OWN_LOADER,
    PLANNER,
    AddWorkers,
    Command,
    Dismiss,
    Event,
    Fill,
    GiveUp,
    HostDrained,
    HostsWanted,
    KillWorker,
    Kind,
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
    may_load,
    split,
)

MOST_LOSSES = 5
"""So many losses of one name within `BUDGET_S`, and the next ends the run: something takes down whatever is started."""
BUDGET_S = 60.0
SLOW_HOST = 3.0
"""A host that is silent this many times the patience is killed: its rows have long been with others."""


@dataclass(slots=True)
class _Post:
    name: str
    kind: Kind
    epoch: int = 0
    worker: Worker | None = None
    home: str = ""
    """Name of the worker that held it last: it is given the post again if it comes back."""
    vacant_since: float = 0.0
    silent_since: float | None = None
    stands_by: bool = False


class Roster:
    """Keeps every post held. Events in, commands out; times are seconds of any one clock."""

    def __init__(
        self,
        *,
        num_hosts: int,
        num_shadows: int,
        own: Iterable[str] = (),
        ends_others: bool = False,
        silence_s: float,
        deadline_s: float,
    ) -> None:
        """Have no worker yet; `begin` takes the first ones.

        Args:
            num_hosts: Loader hosts wanted.
            num_shadows: Standing by, besides.
            own: Names of the processes that are ours to start and to kill.
            ends_others: Whether processes that are not ours end, too, when they are dismissed.
            silence_s: After this a post is taken for silent; a vacant one waits so long for a worker of its kind.
            deadline_s: A planner or constructor that has no worker for so long ends the run.
        """
        self._num_hosts = num_hosts
        self._num_shadows = num_shadows
        self._own = set(own)
        self._starts_own = bool(self._own)
        self._num_named = sum(map(may_load, self._own))
        self._ends_others = ends_others
        self._ending: set[tuple[str, int]] = set()
        """Address and incarnation of processes that were dismissed: that they go is no loss."""
        self._silence_s = silence_s
        self._deadline_s = deadline_s
        self._workers: dict[str, Worker] = {}
        self._frozen: set[str] = set()
        """Addresses that are given no post: what was there did not answer."""
        self._fixed: list[_Post] = []
        """The planner's and the constructors'."""
        self._hosts: dict[str, _Post] = {}
        self._epochs: dict[str, int] = {}
        self._losses: dict[str, deque[tuple[float, str]]] = {}
        self._killed: dict[str, str] = {}
        """Names of processes that were told to end, and why."""
        self._has_given_up = False

    def begin(self, constructors: Sequence[str], workers: Iterable[Worker]) -> list[Fill]:
        """Fill all posts from the workers there are: at the start, and when all were lost with their scheduler.

        Args:
            constructors: Names of theirs.
            workers: At least one.
        """
        found = in_order(workers)
        self._workers = {worker.address: worker for worker in found}
        self._frozen.clear()
        self._ending.clear()
        self._hosts.clear()
        control, planner, loading = split(found)
        self._fixed = [_Post(PLANNER, PLANNER), *(_Post(name, "constructor") for name in constructors)]
        fills = [self._fill(self._fixed[0], planner)]
        for number, post in enumerate(self._fixed[1:]):
            # Runs of ranks go to constructing workers in the order of their names: where workers are numbered as the
            # trainer's nodes are, each node's ranks find their constructor on their own machine.
            fills.append(self._fill(post, control[number * len(control) // len(constructors)]))
        return fills + [self._host_at(worker) for worker in loading[: self._num_hosts + self._num_shadows]]

    def handle(self, events: Iterable[Event], now_s: float) -> list[Command]:
        """Take what happened up to now and return what to do."""
        if self._has_given_up:
            return []
        commands: list[Command] = []
        for event in events:
            commands += self._note(event, now_s)
        for post in self._hosts.values():
            commands += self._kill_if_silent(post, now_s)
        for name, losses in self._losses.items():
            while losses and losses[0][0] <= now_s - BUDGET_S:
                losses.popleft()
            if len(losses) > MOST_LOSSES:
                how = ", ".join(how for _, how in losses)
                return [*commands, *self._give_up(
                    f"{name} was lost {len(losses)} times within {BUDGET_S:g} s ({how}), and what takes its place "
                    "would end likewise; see what ends it, then start the run again"
                )]  # fmt: skip
        return commands + self._refill(now_s)

    def move(self, constructors: Sequence[str], now_s: float) -> list[Command]:
        """Have another planner and other constructors, and the hosts that there are: the mesh is another one."""
        control, planner, _ = split(self._sorted())
        self._fixed = [_Post(PLANNER, PLANNER, home=planner.name, vacant_since=now_s)]
        for number, name in enumerate(constructors):
            home = control[number * len(control) // len(constructors)].name
            self._fixed.append(_Post(name, "constructor", home=home, vacant_since=now_s))
        return self._refill(now_s)

    @property
    def num_hosts(self) -> int:
        """Loader hosts that are wanted, besides those that stand by."""
        return self._num_hosts

    @property
    def num_idle(self) -> int:
        """Processes that may load and were given nothing."""
        return sum(not self._load_of(worker) for worker in self._loading())

    def stands_by(self, post: str) -> bool:
        """Return whether a loader host holds nothing until another one is lost."""
        return post in self._hosts and self._hosts[post].stands_by

    def worker(self, address: str) -> Worker | None:
        """Return the worker at an address."""
        return self._workers.get(address)

    def address(self, name: str) -> str | None:
        """Return the address of a worker that is there."""
        return next((worker.address for worker in self._workers.values() if worker.name == name), None)

    @property
    def num_constructing(self) -> int:
        """Workers that may hold constructors."""
        return len(split(self._sorted())[0])

    @property
    def next_term(self) -> int:
        """Of the planner that is made next."""
        return self._epochs.get(PLANNER, 0) + 1

    def _note(self, event: Event, now_s: float) -> list[Command]:
        match event:
            case WorkerCame(worker=worker):
                return self._come(worker, now_s)
            case WorkerAnswered(address=address, incarnation=incarnation):
                there = self._workers.get(address)
                if there is not None and there.incarnation == incarnation:
                    self._frozen.discard(address)
                return []
            case WorkerLost():
                return self._lose_worker(event, now_s)
            case WorkerEnded(name=name, how=how):
                self._count(name, how, now_s)
                return [StartWorker(name)] if name in self._own else []
            case PostLost(post=name, epoch=epoch, how=how):
                post = self._held(name, epoch)
                return [] if post is None else [self._vacate(post, how, now_s)]
            case PostSilent(post=name, epoch=epoch):
                post = self._held(name, epoch)
                return [] if post is None else self._silent(post, now_s)
            case PostAnswered(post=name, epoch=epoch):
                post = self._held(name, epoch)
                if post is not None and post.worker is not None:
                    post.silent_since = None
                    self._frozen.discard(post.worker.address)
                return []
            case HostsWanted(count=count):
                return self._want(count)
            case HostDrained(post=name, epoch=epoch):
                post = self._held(name, epoch)
                return [] if post is None else self._dismiss(post)

    def _come(self, worker: Worker, now_s: float) -> list[Command]:
        """Take that a process is there; of one that was there before it is the end, if nobody said so."""
        before = self._workers.get(worker.address)
        commands: list[Command] = []
        if before is not None and before.incarnation != worker.incarnation:
            lost = WorkerLost(worker.address, "another process took its place", incarnation=before.incarnation)
            # It need not be started: it is there.
            commands = [one for one in self._lose_worker(lost, now_s) if not isinstance(one, StartWorker)]
        self._workers[worker.address] = worker
        self._killed.pop(worker.name, None)
        return commands

    def _lose_worker(self, lost: WorkerLost, now_s: float) -> list[Command]:
        worker = self._workers.get(lost.address)
        if worker is None or worker.incarnation != lost.incarnation:
            return []
        del self._workers[lost.address]
        self._frozen.discard(lost.address)
        if (lost.address, lost.incarnation) in self._ending:
            self._ending.discard((lost.address, lost.incarnation))
            return []
        how = self._killed.pop(worker.name, lost.how)
        held = [post for post in (*self._fixed, *self._hosts.values()) if post.worker == worker]
        if not held and lost.is_counted:
            self._count(worker.name, how, now_s)
        commands: list[Command] = [self._vacate(post, how, now_s, is_counted=lost.is_counted) for post in held]
        return [*commands, StartWorker(worker.name)] if worker.name in self._own else commands

    def _want(self, count: int) -> list[Command]:
        """Return what to start for another number of hosts: those that are there already are taken first."""
        self._num_hosts = max(self._num_hosts, count)
        wanted = self._num_hosts + self._num_shadows
        if not self._starts_own:
            loading = self._loading()
            others = len(self._workers) - len(loading)
            return [AddWorkers(others + wanted)] if wanted > len(loading) else []
        there = [name for name in self._own if may_load(name)]
        # Under names that were never used: of those before, word may still come.
        first = self._num_named
        new = [f"{OWN_LOADER}{number}" for number in range(first, first + wanted - len(there))]
        self._num_named += len(new)
        self._own.update(new)
        return [StartWorker(name) for name in new]

    def _dismiss(self, post: _Post) -> list[Command]:
        """Do without a host; the last one stays."""
        assert post.worker is not None
        if len(self._hosts) == 1:
            return []
        self._num_hosts = max(1, self._num_hosts - 1)
        del self._hosts[post.name]
        if post.worker.name in self._own or self._ends_others:
            self._own.discard(post.worker.name)
            self._frozen.add(post.worker.address)
            self._ending.add((post.worker.address, post.worker.incarnation))
        return [Dismiss(post.name, post.worker)]

    def _silent(self, post: _Post, now_s: float) -> list[Command]:
        assert post.worker is not None
        if post.silent_since is None:
            post.silent_since = now_s
        if post.kind == "host":
            # Others have its rows already; it may be only slow, and then it is one more host.
            if post.worker.name not in self._own:
                self._frozen.add(post.worker.address)
            return []
        if post.worker.name in self._own:
            return self._kill(post, self._silence_s)
        # Not ours to kill: what is there is not listened to any more, and comes to its end when it is told.
        self._frozen.add(post.worker.address)
        probe = Probe(post.worker)
        return [self._vacate(post, f"no answer for {self._silence_s:g} s", now_s), probe]

    def _kill_if_silent(self, post: _Post, now_s: float) -> list[Command]:
        if post.silent_since is None or post.worker is None or post.worker.name not in self._own:
            return []
        is_over = now_s - post.silent_since >= (SLOW_HOST - 1) * self._silence_s
        return self._kill(post, SLOW_HOST * self._silence_s) if is_over else []

    def _kill(self, post: _Post, patience_s: float) -> list[Command]:
        assert post.worker is not None
        if post.worker.name in self._killed:
            return []
        why = self._killed[post.worker.name] = f"{post.name} gave no answer for {patience_s:g} s"
        return [KillWorker(post.worker.name, why)]

    def _refill(self, now_s: float) -> list[Command]:
        """Return what to do about posts that nobody holds; hosts come before the planner, who could not do a thing."""
        commands = [fill for post in self._fixed if post.kind == "constructor" for fill in self._taken(post, now_s)]
        for worker in self._sorted():
            if self._num_live_hosts() >= self._num_hosts + self._num_shadows:
                break
            if may_load(worker.name) and worker.address not in self._frozen and not self._load_of(worker):
                commands.append(self._host_at(worker))
        if self._hosts:
            commands += [fill for post in self._fixed if post.kind == PLANNER for fill in self._taken(post, now_s)]
        for post in self._fixed:
            if post.worker is None and now_s - post.vacant_since > self._deadline_s:
                return self._give_up(
                    f"{post.name} is gone and no Dask worker came within {self._deadline_s:g} s to take its place; "
                    "start one with `dask worker`, then the run again"
                )
        return commands

    def _taken(self, post: _Post, now_s: float) -> list[Command]:
        """Return who is to hold a post, if nobody does and there is somebody for it."""
        worker = self._worker_for(post, now_s) if post.worker is None else None
        return [] if worker is None else [self._fill(post, worker)]

    def _worker_for(self, post: _Post, now_s: float) -> Worker | None:
        """Return who suits a post: a worker of its kind, else a spare one, in the end any."""
        there = [worker for worker in self._sorted() if worker.address not in self._frozen]
        kinds = ("msd-planner", "msd-control") if post.kind == PLANNER else ("msd-control",)
        for kind in kinds:
            if of_kind := [worker for worker in there if worker.name.startswith(kind)]:
                return min(of_kind, key=lambda worker: (worker.name != post.home, self._load_of(worker)))
        spare = [worker for worker in there if worker.name not in self._hosts and worker.name not in self._own]
        if spare:
            return spare[0]
        if now_s - post.vacant_since < self._patience_s(post):
            return None
        return min(there, key=self._load_of, default=None)

    def _patience_s(self, post: _Post) -> float:
        """Return how long a post waits for the process that is being started for it."""
        return 10 * self._silence_s if post.home in self._own else self._silence_s

    def _host_at(self, worker: Worker) -> Fill:
        hosts = self._hosts.values()
        active = [post for post in hosts if not post.stands_by]
        num_silent = sum(post.silent_since is not None for post in active)
        num_shadows = sum(post.stands_by and post.silent_since is None for post in hosts)
        # A shadow that answers is as good as an active one that does not.
        is_shadow = len(active) - num_silent + min(num_silent, num_shadows) >= self._num_hosts
        post = self._hosts[worker.name] = _Post(worker.name, "host", stands_by=is_shadow)
        return self._fill(post, worker, is_shadow=is_shadow)

    def _fill(self, post: _Post, worker: Worker, *, is_shadow: bool = False) -> Fill:
        epoch = post.epoch = self._epochs[post.name] = self._epochs.get(post.name, 0) + 1
        post.worker, post.home, post.silent_since = worker, worker.name, None
        return Fill(post.name, post.kind, epoch, worker, is_shadow)

    def _vacate(self, post: _Post, how: str, now_s: float, *, is_counted: bool = True) -> Vacate:
        assert post.worker is not None
        told = Vacate(post.name, post.kind, post.epoch, post.worker.name, how)
        if is_counted:
            self._count(post.name, how, now_s)
        post.worker, post.silent_since, post.vacant_since = None, None, now_s
        if post.kind == "host":
            del self._hosts[post.name]
            heir = next((one for one in self._hosts.values() if one.stands_by), None)
            if not post.stands_by and heir is not None:
                heir.stands_by = False
        return told

    def _held(self, name: str, epoch: int) -> _Post | None:
        post = self._hosts.get(name) or next((post for post in self._fixed if post.name == name), None)
        return post if post is not None and post.worker is not None and post.epoch == epoch else None

    def _count(self, name: str, how: str, now_s: float) -> None:
        self._losses.setdefault(name, deque()).append((now_s, how))

    def _give_up(self, why: str) -> list[Command]:
        self._has_given_up = True
        return [GiveUp(why)]

    def _sorted(self) -> list[Worker]:
        return in_order(self._workers.values())

    def _loading(self) -> list[Worker]:
        """Return the workers that may be given a loader host."""
        may_load = split(self._sorted())[2] if self._workers else []
        return [worker for worker in may_load if worker.address not in self._frozen]

    def _load_of(self, worker: Worker) -> int:
        return sum(post.worker == worker for post in (*self._fixed, *self._hosts.values()))

    def _num_live_hosts(self) -> int:
        return sum(post.silent_since is None for post in self._hosts.values())
