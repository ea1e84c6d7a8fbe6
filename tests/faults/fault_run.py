"""A served run that is disturbed on a schedule, beside what it would have been undisturbed.

Every process is a program of its own, as for users: `msd serve`, started again whenever it ends, as a service
manager does; its workers; ranks. Nothing here knows what the run does about a fault: it looks at what ranks receive,
how long they waited, and what is left in the end.
"""

import contextlib
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fault_outcome import Outcome, Struck
from fault_ranks import Lockstep, ThreadRank, choose
from fault_schedule import Fault
from fault_services import ProgramRank, Service, born, command_of, is_alive, listens, worker_name
from processes import Start, descendants, programs, wait_until

RANK = Path(__file__).with_name("fault_ranks.py")
TICK_S = 0.01
THERE_S = 40.0
"""A process that is to be dealt with is there within this."""
ENDS_S = 30.0


class FaultyRun:
    """Serves a configuration, has ranks take it, and deals faults."""

    def __init__(self, start: Start, folder: Path, config: Path, *, settings: Sequence[object] = ()) -> None:
        """Get ready.

        Args:
            start: Starts programs.
            folder: For what ranks write, and a folder of temporary files that has to be empty in the end.
            config: As `write_config` wrote it.
            settings: More arguments of `msd serve`.
        """
        self._start, self._folder = start, folder
        self._temporary = Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp"))
        self._env = {"TMPDIR": str(self._temporary)}
        self._seen: dict[int, str] = {}
        """Processes, with when they began: numbers are given again."""
        self._paused: list[tuple[float, int]] = []
        self._struck: set[int] = set()
        self._unasked: list[str] = []
        """What was said of `msd serve` when it ended though nobody dealt it a fault."""
        self._is_dealing = False
        self.rendezvous = folder / "address.json"
        self.services: dict[str, Service] = {}
        self.ranks: list[ThreadRank | ProgramRank] = []
        options = ("--rendezvous", self.rendezvous, *settings)
        # Its own: a lost rank of another run on this host may call at a port that was given on to this one.
        token = {"MSD_TOKEN": secrets.token_hex(8)}
        self.serve = self.service("serve", "-m", "msd.cli.main", "serve", config, *options, env=token)

    def service(self, name: str, *command: object, env: dict[str, str] | None = None) -> Service:
        """Add a program that is started again whenever it ends."""
        self.services[name] = Service(self._start, name, command, self._env | (env or {}))
        return self.services[name]

    def scheduler(self, port: int) -> Service:
        """Add a Dask scheduler, and wait until it listens."""
        if not (settings := self._folder / "dask.yaml").exists():
            settings.write_text(self._start("settings", "-m", "msd.cli.main", "serve", "--dask-config").wait(30))
        one = ("--host", "127.0.0.1", "--no-dashboard", "--port", port, "--no-show")
        env = {"DASK_CONFIG": str(settings)}
        found = self.service("scheduler", "-m", "distributed.cli.dask_scheduler", *one, env=env)
        found.tick()
        wait_until(lambda: listens(port), 30, "the scheduler")
        return found

    def worker(self, name: str, scheduler: str, *where: object) -> Service:
        """Add a Dask worker of that scheduler; `where` are options that say where it listens."""
        one = ("--name", name, "--nthreads", 1, "--no-nanny", "--no-dashboard", "--memory-limit", 0)
        place = (*(where or ("--host", "127.0.0.1")), "--local-directory", self._folder)
        env = {"DASK_CONFIG": str(self._folder / "dask.yaml")}
        return self.service(name, "-m", "distributed.cli.dask_worker", scheduler, *one, *place, env=env)

    def begin(self, ranks: int, steps: int, *, pace_s: float, as_programs: bool = False) -> None:
        """Serve, and start ranks."""
        self.steps = steps
        self.tick()
        lockstep = Lockstep(ranks)
        for rank in range(ranks):
            if as_programs:
                out, arguments = self._folder / f"rank-{rank}.jsonl", (rank, ranks, steps, pace_s, self._folder)
                one = self.service(f"rank-{rank}", RANK, self.rendezvous.as_uri(), *arguments)
                one.may_end = True
                self.ranks.append(ProgramRank(one, out, rank))
            else:
                self.ranks.append(ThreadRank(self.rendezvous.as_uri(), rank, steps, pace_s, lockstep))

    def go_through(self, faults: Sequence[Fault], *, timeout_s: float = 80.0) -> Outcome:
        """Deal the faults, wait for the ranks, end everything in good order."""
        outcome, deadline = Outcome(), time.monotonic() + timeout_s
        self._is_dealing = True
        for fault in faults:
            self._wait(lambda fault=fault: self.reached() > fault.at_step, deadline, f"step {fault.at_step}")
            if all(rank.is_done for rank in self.ranks):
                break
            outcome.struck.append(self._strike(fault))
        self._wait(lambda: all(rank.is_done for rank in self.ranks), deadline, "the ranks to have taken every step")
        outcome.read({rank.rank: rank.read() for rank in self.ranks})
        self._end(outcome)
        return outcome

    def reach(self, step: int, *, timeout_s: float = 60.0) -> None:
        """Wait until every rank has taken a step."""
        self._wait(lambda: self.reached() > step, time.monotonic() + timeout_s, f"step {step}")

    def alive(self) -> set[int]:
        """Return the processes of the run, ranks left out, that are there now."""
        self._see(self.serve)
        ranks = {service.pid for name, service in self.services.items() if name.startswith("rank-")}
        return self._alive() - ranks

    def reached(self) -> int:
        """Return the step that the slowest rank asks for next."""
        return min(rank.next_step for rank in self.ranks)

    def pids(self, target: str) -> tuple[int, ...]:
        """Return the processes of a service, or of a Dask worker that the run started."""
        if target in self.services:
            pid = self.services[target].pid
            return () if pid is None else (pid,)
        served = self.serve.pid
        found = [] if served is None else [pid for pid in descendants(served) if worker_name(pid) == target]
        return tuple(pid for pid in found if is_alive(pid))

    def close(self) -> None:
        """End what still runs, however the run went."""
        for service in self.services.values():
            service.is_wanted = False
        for rank in self.ranks:
            rank.end()
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in sorted(self._temporary.rglob("*"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        with contextlib.suppress(OSError):
            self._temporary.rmdir()

    def told(self) -> str:
        """Return the last words of every program, for the message of a failure."""
        return "\n".join(service.last_words for service in self.services.values() if service.program)

    def note_struck(self, pids: Iterable[int]) -> None:
        """Take that processes were dealt a fault by the test itself."""
        self._struck |= set(pids)

    def _strike(self, fault: Fault) -> Struck:
        self._wait(lambda: bool(self.pids(fault.target)), time.monotonic() + THERE_S, f"{fault.target} to be there")
        pids = self.pids(fault.target)
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(fault.how, signal.SIGSTOP)
        at = time.monotonic()
        self._struck |= set(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if fault.how == "pause":
                self._paused.append((at + fault.back_after_s, pid))
        return Struck(fault, at, pids)

    def _wait(self, is_so: Callable[[], bool], deadline: float, what: str) -> None:
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited too long for {what}; ranks are at step {self.reached()}")
            self.tick()
            time.sleep(TICK_S)

    def tick(self) -> None:
        """Start again what has ended, and wake what was paused long enough."""
        now = time.monotonic()
        for due, pid in [one for one in self._paused if one[0] <= now]:
            self._paused.remove((due, pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._restart_ranks()
        ranks = [rank.service for rank in self.ranks if isinstance(rank, ProgramRank)]
        self._look_at_serve()
        for service in self.services.values():
            # One that was lost a moment ago must not come back alone: all do, from the same state.
            service.tick(again=service not in ranks)
            self._see(service)

    def _look_at_serve(self) -> None:
        """Note that `msd serve` ended though nobody dealt it a fault and it had begun to serve; it is started again."""
        program = self.serve.program
        status = None if program is None else program.process.poll()
        if program is None or status is None or not self._is_dealing or program.process.pid in self._struck:
            return
        self._struck.add(program.process.pid)
        if "msd://" in program.output:
            self._unasked.append(f"msd serve ended unasked with {status}: {program.output[-1500:]}")

    def _see(self, service: Service) -> None:
        pids = set() if service.pid is None else {service.pid}
        if pids and service is self.serve:
            pids |= descendants(service.pid)
        self._seen |= {pid: began for pid in pids if (began := born(pid))}

    def _alive(self) -> set[int]:
        return {pid for pid, began in self._seen.items() if born(pid) == began and is_alive(pid)}

    def _restart_ranks(self) -> None:
        """Where one rank was lost end the others too, as torchrun does, and have all of them load the same state."""
        programs = [rank for rank in self.ranks if isinstance(rank, ProgramRank)]
        if not any(rank.is_lost for rank in programs):
            return
        for rank in programs:
            if rank.service.program is not None:
                rank.service.program.kill()
                rank.service.program.process.wait()
        choose(self._folder, len(programs), before=self.steps - 1)
        for rank in programs:
            rank.service.is_wanted = True
            rank.service.tick()

    def _end(self, outcome: Outcome) -> None:
        """End the programs as a service manager does, the run first, and look at what stays."""
        outcome.left += self._unasked
        for service in self.services.values():
            service.is_wanted = False
        for _, pid in self._paused:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._paused.clear()
        for service in self.services.values():
            if service.pid is not None and service.program is not None:
                status = service.program.stop(ENDS_S)
                if status and service is self.serve:
                    outcome.left.append(f"msd serve ended with {status}: {service.output[-1500:]}")
        deadline = time.monotonic() + ENDS_S
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(TICK_S)
        outcome.left += [f"process {pid}: {command_of(pid)}" for pid in sorted(alive)]
        outcome.left += [f"file {path}" for path in self._temporary.glob("msd-*")]
        if self.rendezvous.exists():
            outcome.left.append(f"file {self.rendezvous}")


@contextlib.contextmanager
def faulty(folder: Path, config: Path, *, settings: Sequence[object] = ()) -> Iterator[FaultyRun]:
    """Yield a run that is ended whatever happens."""
    with programs(folder) as start:
        run = FaultyRun(start, folder, config, settings=settings)
        try:
            yield run
        except Exception as error:
            error.add_note(run.told())
            raise
        finally:
            run.close()


def standing_cluster(run: FaultyRun, workers: Sequence[str]) -> str:
    """Add a scheduler and workers that are services of their own; return the scheduler's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run.scheduler(port)
    address = f"tcp://127.0.0.1:{port}"
    for name in workers:
        run.worker(name, address)
    return address
