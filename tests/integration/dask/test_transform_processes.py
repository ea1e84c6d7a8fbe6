"""Transforms in processes of a loader host: the same bytes, more than one process, and none that stays."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

import msd
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.testing import scenarios
from msd.testing.scenarios import same_bytes, undisturbed

pytestmark = pytest.mark.cluster

STEPS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(["msd-control", "msd-loader-0", "msd-loader-1"]) as cluster:
        cluster.wait()
        yield cluster


def one_source(function, num_rows=100, **settings):
    rows = [{"ids": [1, 2, 3], "n": number} for number in range(num_rows)]
    source = {"rows": rows, "transforms": [function, {"kind": "tokens"}], "transform_in": "processes", **settings}
    return msd.Config(
        sources={"web": source},
        batch={"sequence_length": 16, "global_batch_size": 2},
        mesh={"dp": 1},
        num_microbatches=1,
        runtime={"workers": 1, "deadline_s": 30},
    )


def on(config, cluster, workers=1):
    return config.replace(runtime={"scheduler": cluster.address, "workers": workers})


def take(client, steps):
    for _ in range(steps):
        next(client)


def children_of(engine):
    (host,) = engine.stats()["hosts"]
    return psutil.Process(host["pid"]).children(recursive=True)


def are_gone(found):
    return all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in found)


def wait_until(is_so, what):
    deadline = time.monotonic() + 15
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("where", ["processes", "auto"])
@pytest.mark.parametrize("name", ["uneven", "image-text"])
def test_where_transforms_run_does_not_change_what_ranks_receive(cluster, name, where):
    """Answers DK-5."""
    config = scenarios.SCENARIOS[name]()
    chosen = config.replace(sources={source: {"transform_in": where} for source in config.sources})
    with msd.start(on(chosen, cluster, workers=2)) as engine:
        same_bytes(undisturbed(config, STEPS), engine)


def test_a_loop_in_python_runs_in_several_processes_that_end_with_the_run(cluster):
    def where(sample):
        for _ in range(20_000):
            pass
        return {"ids": [os.getpid() % (1 << 31)]}

    with msd.start(on(one_source(where), cluster)) as engine:
        client = engine.client(0)
        found = {int(token) for _ in range(4) for row in next(client).microbatches for token in row.input_ids}
        started = children_of(engine)
        assert len(found & {each.pid for each in started}) > 1
    wait_until(lambda: are_gone(started), "processes stay when the run is closed")


def test_a_killed_host_leaves_no_process_behind():
    def hangs(sample):
        while sample["n"] >= 60:
            pass
        return sample

    with msd.start(one_source(hangs, shuffle=False)) as engine:
        client = engine.client(0)
        next(client)
        started = children_of(engine)
        assert len(started) > 2
        os.kill(engine.stats()["hosts"][0]["pid"], signal.SIGKILL)
        wait_until(lambda: are_gone(started), "processes outlive their host")


@pytest.mark.parametrize("where", ["threads", "processes"])
def test_closing_does_not_wait_for_a_transform_that_hangs(where):
    def hangs(sample):
        if sample["n"] >= 60:
            threading.Event().wait()
        return sample

    config = one_source(hangs, shuffle=False, transform_in=where)
    with contextlib.ExitStack() as running:
        engine = running.enter_context(msd.start(config))
        next(engine.client(0))
        worker = engine._cluster._workers["msd-loader-0"]
        closed_at = time.monotonic()
    assert time.monotonic() - closed_at < 7
    # By itself: it did not have to be killed.
    assert worker.returncode in (0, -signal.SIGTERM)
