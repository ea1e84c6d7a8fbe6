"""What we rely on in the installed Dask, trap by trap: these fail loudly when a release changes it."""

import ast
import asyncio
import inspect
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import dask
import numpy as np
import pytest
from distributed import Client, default_client, get_worker

import msd
from msd.errors import BadSampleRateError, DeadlineError
from msd.runtime.dask import calls, constructor, hosts, planner
from msd.runtime.dask.calls import ActorGone, Ref, call
from msd.runtime.dask.cluster import RETRY_S, EmbeddedCluster
from msd.runtime.dask.plugin import LOST_TOPIC, RunPlugin
from msd.runtime.dask.preload import MOST_LOG_BYTES
from msd.runtime.dask.settings import as_set
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

NAMES = ["msd-control", "msd-loader-0", "msd-loader-1"]


class Probe:
    """An actor that does as it is told."""

    async def echo(self, value: Any) -> Any:
        return value

    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    async def refuse(self) -> None:
        raise BadSampleRateError("too many of them fail")

    async def ask(self, ref: Ref, method: str, args: list[Any], deadline_s: float) -> Any:
        return await call(get_worker(), ref, method, *args, deadline_s=deadline_s)

    async def times_two_in_a_process(self, number: int) -> int:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return await asyncio.wrap_future(pool.submit(int.__mul__, number, 2))


class Bench:
    """The cluster, a client of it, and probes where they are wanted."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        with dask.config.set(as_set()):
            self.client = Client(cluster.address, direct_to_workers=True, set_as_default=False)
        self.client.rpc.timeout = RETRY_S
        self.futures: dict[str, Any] = {}
        self._at = self._workers(3)

    def start_worker(self, name: str) -> None:
        self.cluster._start(name)
        self._at = self._workers(len(self._at) + 1)

    def _workers(self, count: int) -> dict[str, str]:
        """Return addresses by name, once so many are there."""
        self.client.wait_for_workers(count, timeout=30)
        return {str(one["name"]): at for at, one in self.client.scheduler_info(n_workers=-1)["workers"].items()}

    def kill_worker(self, name: str) -> None:
        process = self.cluster._workers.pop(name)
        process.kill()
        process.wait()
        self._at.pop(name)

    def probe(self, key: str, worker: str = "msd-loader-0") -> Ref:
        future = self.client.submit(Probe, actor=True, key=key, workers=[self._at[worker]], pure=False)
        self.futures[key] = future
        future.result(timeout=30)
        return Ref(key, self._at[worker], key)

    def release(self, ref: Ref) -> None:
        self.futures.pop(ref.key).release()
        deadline = time.monotonic() + 10
        while self.client.run(held_actors, workers=[ref.address])[ref.address].count(ref.key):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def call(self, ref: Ref, method: str, *args: Any, deadline_s: float = 20.0) -> Any:
        return self.client.sync(call, self.client, ref, method, *args, deadline_s=deadline_s)


def held_actors(dask_worker: Any) -> list[str]:
    return [str(key) for key in dask_worker.state.actors]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with EmbeddedCluster(NAMES) as cluster:
        bench = Bench(cluster)
        try:
            yield bench
        finally:
            bench.futures.clear()
            bench.client.close()


def config(bench: Bench, **changes: Any) -> msd.Config:
    runtime = {"kind": "dask", "scheduler": bench.cluster.address, "deadline_s": 30}
    return scenarios.text(runtime={**runtime, **changes.pop("runtime", {})}, **changes)


def test_a_call_carries_arrays_there_and_back(bench):
    sent = {"tokens": np.arange(1 << 18, dtype=np.int32), "names": ["a", "b"], "empty": np.zeros(0)}
    came = bench.call(bench.probe("echo-e1"), "echo", sent)
    assert came["names"] == ["a", "b"]
    assert came["tokens"].dtype == np.int32
    np.testing.assert_array_equal(came["tokens"], sent["tokens"])


def test_an_actor_that_was_released_is_gone_at_once_instead_of_silent(bench):
    ref = bench.probe("released-e1")
    bench.release(ref)
    began = time.monotonic()
    with pytest.raises(ActorGone, match="released-e1 is no longer at tcp://"):
        bench.call(ref, "echo", 1)
    assert time.monotonic() - began < 2


def test_an_unknown_key_is_gone_too(bench):
    ref = Ref("nobody-e1", bench.probe("somebody-e1").address, "nobody")
    with pytest.raises(ActorGone, match="nobody is no longer at"):
        bench.call(ref, "echo", 1)


def test_a_remote_error_arrives_as_the_class_it_was_raised_as(bench):
    with pytest.raises(BadSampleRateError, match="too many of them fail"):
        bench.call(bench.probe("refuses-e1"), "refuse")


def test_a_deadline_names_whom_it_waited_for_and_the_next_call_gets_its_own_answer(bench):
    ref = bench.probe("slow-e1")
    with pytest.raises(DeadlineError, match=r"slow-e1 at tcp://.* did not answer 'sleep' within 0\.2 s"):
        bench.call(ref, "sleep", 0.5, deadline_s=0.2)
    time.sleep(0.5)
    assert [bench.call(ref, "echo", number) for number in range(5)] == list(range(5))


def test_a_call_from_inside_an_actor_ends_when_its_target_is_killed(bench):
    """A bare proxy would hang for ever there."""
    bench.start_worker("msd-extra-0")
    target, asker = bench.probe("target-e1", "msd-extra-0"), bench.probe("asker-e1")
    asking = bench.client.loop.asyncio_loop

    async def ask(method: str, args: list[Any]) -> Any:
        return await call(bench.client, asker, "ask", target, method, args, 20.0, deadline_s=30.0)

    under_way = asyncio.run_coroutine_threadsafe(ask("sleep", [60]), asking)
    time.sleep(0.5)
    bench.kill_worker("msd-extra-0")
    killed_at = time.monotonic()
    with pytest.raises(ActorGone, match="target-e1 at tcp://"):
        under_way.result(timeout=30)
    assert time.monotonic() - killed_at < 2
    # A new call tries to connect for as long as the settings that each process has allow.
    with pytest.raises(ActorGone, match="cannot be reached"):
        asyncio.run_coroutine_threadsafe(ask("echo", [1]), asking).result(timeout=30)
    assert time.monotonic() - killed_at < 12


def test_the_key_of_a_lost_actor_cannot_be_used_again_so_keys_carry_run_and_epoch(bench):
    bench.start_worker("msd-extra-1")
    ref = bench.probe("lost-e1", "msd-extra-1")
    bench.kill_worker("msd-extra-1")
    deadline = time.monotonic() + 10
    while bench.futures["lost-e1"].status == "finished":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    again = bench.client.submit(Probe, actor=True, key=ref.key, pure=False)
    with pytest.raises(Exception, match="lost"):
        again.result(timeout=10)
    bench.futures.pop("lost-e1")
    with msd.start(config(bench)) as first, msd.start(config(bench)) as second:
        keys = [key for engine in (first, second) for key in engine._supervisor._posts._maker._futures]
    assert len(keys) == len(set(keys))
    assert all(key.startswith("msd-") and key.endswith("-e1") for key in keys)


def test_the_default_client_of_the_user_stays_the_default_client_of_the_user(bench):
    with Client(bench.cluster.address) as users:
        with msd.start(config(bench)) as engine:
            assert default_client() is users
            next(engine.client(0))
            assert users.submit(abs, -1).result(timeout=20) == 1
        assert default_client() is users
        assert users.submit(abs, -2).result(timeout=20) == 2


def test_workers_that_hold_actors_are_neither_chosen_for_closing_nor_retired(bench):
    def closable(dask_scheduler: Any) -> list[str]:
        return [str(dask_scheduler.workers[address].name) for address in dask_scheduler.workers_to_close(n=3)]

    bench.client.register_plugin(RunPlugin())
    while bench.futures:
        bench.futures.popitem()[1].release()
    deadline = time.monotonic() + 10
    while sorted(bench.client.run_on_scheduler(closable)) != NAMES:
        assert time.monotonic() < deadline, "workers without actors may be closed"
        time.sleep(0.05)
    with msd.start(config(bench)) as engine:
        assert bench.client.run_on_scheduler(closable) == []
        refused = bench.client.retire_workers(names=["msd-loader-0"])
        assert refused == {}
        assert len(bench.client.scheduler_info(n_workers=-1)["workers"]) == 3
        next(engine.client(0))


def test_a_call_to_an_actor_of_the_same_worker_is_like_any_other(bench):
    asker, target = bench.probe("near-asker-e1"), bench.probe("near-target-e1")
    assert asker.address == target.address
    assert bench.call(asker, "ask", target, "echo", ["here"], 10.0) == "here"


def sleep_long(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.25)
    return sample


def test_a_slow_transform_holds_up_no_call_and_no_other_source(bench):
    tokens = {"kind": "tokens", "field": "ids"}
    sources = {
        "slow": {"rows": scenarios.token_rows(1, 200, 20), "transforms": [sleep_long, tokens]},
        "fast": {"rows": scenarios.token_rows(2, 200, 20), "transforms": [tokens]},
    }
    weights = {"slow": 0.02, "fast": 0.98}
    settings = config(bench, sources=sources, mixture={"weights": weights}, runtime={"workers": 1})
    with msd.start(settings) as engine:
        longest_s = 0.0
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(20):
            began = time.monotonic()
            engine.stats()
            longest_s = max(longest_s, time.monotonic() - began)
            time.sleep(0.02)
        assert [next(client).step for client in clients] == [0, 0]
    assert longest_s < 1.0


def test_an_actor_may_use_processes_of_its_own(bench):
    assert bench.call(bench.probe("pool-e1"), "times_two_in_a_process", 21) == 42


def test_the_settings_are_in_force_in_every_process_and_nowhere_else(bench):
    wanted = as_set()
    before = dask.config.get("distributed.worker.profile.enabled")

    def found(names: list[str]) -> dict[str, Any]:
        import dask

        return {name: dask.config.get(name) for name in names}

    there = bench.client.run(found, list(wanted))
    assert len(there) == 3
    for of_worker in there.values():
        assert of_worker == wanted
    assert bench.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_ttl) == 30
    assert before is True, "the process that starts a run keeps its own settings"


def test_what_is_called_remotely_is_async_and_takes_no_keywords():
    """A worker has one thread for all sync methods, and Dask takes a keyword `separate_thread` for itself."""
    others = (hosts.LoaderHost, hosts.SourceLoaderActor, constructor.ConstructorActor, planner.PlannerActor)
    targets = {"call": others, "_ask": others, "_ask_planner": others[-1:], "_tell_planner": others[-1:]}
    said = ("begin", "fail", "ping", "standing", "host_gone", "host_joined", "constructor_gone", "constructor_joined")
    asked: dict[str, tuple[type, ...]] = dict.fromkeys(said, others)
    for path in Path(calls.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in targets:
                names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                asked |= dict.fromkeys(names, targets[_name(node.func)])
    assert {"advance", "fetch", "perform", "connect", "begin", "close"} <= set(asked)
    for name, actors in asked.items():
        methods = [getattr(actor, name) for actor in actors if hasattr(actor, name)]
        assert methods, name
        assert all(inspect.iscoroutinefunction(method) for method in methods), name
    kinds = [parameter.kind for parameter in inspect.signature(call).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_a_reference_is_plain_and_keeps_nothing_alive(bench):
    ref = pickle.loads(pickle.dumps(bench.probe("plain-e1")))
    assert bench.call(ref, "echo", 1) == 1
    bench.release(ref)
    with pytest.raises(ActorGone):
        bench.call(ref, "echo", 1)


def test_everyone_who_listens_hears_of_a_lost_worker_before_a_call_could_fail(bench):
    heard: list[tuple[float, str]] = []
    bench.client.register_plugin(RunPlugin())
    bench.client.subscribe_topic("msd-worker-lost", lambda event: heard.append((time.monotonic(), event[1]["worker"])))
    bench.start_worker("msd-extra-2")
    address = bench._at["msd-extra-2"]
    killed_at = time.monotonic()
    bench.kill_worker("msd-extra-2")
    while not heard and time.monotonic() < killed_at + 10:
        time.sleep(0.01)
    bench.client.unsubscribe_topic("msd-worker-lost")
    assert [worker for _, worker in heard] == [address]
    assert heard[0][0] - killed_at < 2


def test_who_listened_in_a_lost_worker_is_not_told_of_its_loss(bench):
    # Dask logs as critical, with a traceback, that a connection is closed on which it is to tell somebody.
    class Connection:
        def __init__(self, is_closed: bool) -> None:
            self.closed = lambda: is_closed

    class Scheduler:
        client_comms: ClassVar = {"in the worker": Connection(True), "elsewhere": Connection(False)}
        subscribers: ClassVar = {"in the worker", "elsewhere"}
        told: ClassVar[list[str]] = []

        def unsubscribe_topic(self, topic: str, client: str) -> None:
            self.subscribers.discard(client)

        def log_event(self, topic: str, message: dict[str, str]) -> None:
            self.told += [f"{client}: {topic} {message['worker']}" for client in self.subscribers]

    RunPlugin().remove_worker(scheduler := Scheduler(), "tcp://h:1")
    assert scheduler.told == [f"elsewhere: {LOST_TOPIC} tcp://h:1"]
    real = bench.cluster._cluster.scheduler
    assert callable(real.unsubscribe_topic)
    assert any(connection.closed() is False for connection in real.client_comms.values())


def test_what_a_worker_prints_does_not_fill_the_disk(bench):
    log = bench.cluster._log("msd-loader-0")
    bench.client.run(os.write, 1, bytes(MOST_LOG_BYTES + 1), workers=[bench._at["msd-loader-0"]])
    deadline = time.monotonic() + 20
    while log.stat().st_size > MOST_LOG_BYTES and time.monotonic() < deadline:
        time.sleep(0.05)
    assert log.stat().st_size < MOST_LOG_BYTES
    bench.client.run(os.write, 1, b"after", workers=[bench._at["msd-loader-0"]])
    assert log.read_bytes().strip(b"\0").endswith(b"after")
    assert b"\0" not in log.read_bytes()


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
