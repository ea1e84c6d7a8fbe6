"""Transforms in processes: equal to those in a thread, and nothing hangs or stays when one ends."""

import os
import signal
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from msd.errors import ClosedError, ConfigError, EngineError, SourceError
from msd.loader.counts import Spent
from msd.loader.poison.suspects import RowsLost
from msd.loader.processes import measure
from msd.loader.processes.chain import InProcesses, placed
from msd.loader.processes.decide import Timing
from msd.loader.processes.measure import Measured
from msd.loader.processes.pool import TransformProcesses
from msd.loader.processes.recipe import ChainRecipe
from msd.loader.slices import Counted
from msd.loader.transforms.config import FilterConfig, FunctionConfig, ImageConfig, TokenizeConfig, TokensConfig
from msd.sources.base import BadRow
from msd.testing.scenarios import image_rows

BYTES = TokenizeConfig(tokenizer="bytes")


@pytest.fixture(scope="module")
def processes():
    processes = TransformProcesses(2)
    yield processes
    processes.close()


def recipe(*transforms, source="web", length=16, overflow="split"):
    made = [each if hasattr(each, "__struct_fields__") else FunctionConfig(function=each) for each in transforms]
    return ChainRecipe(source=source, transforms=made, seed=5, sequence_length=length, overflow=overflow)


def in_processes(how, processes):
    return InProcesses(how.source, how.build(), how.packed(), processes)


def numbered(rows, first=0):
    return list(enumerate(rows, first))


def plain(results):
    """All that results say, as values that can be compared."""
    return [
        (
            *(r.outcome, r.reason, r.num_empty, r.num_split, r.num_truncated_tokens, r.num_dropped, r.num_unlabelled),
            [(s.id, s.num_image_tokens, *map(array, arrays_of(s))) for s in r.samples],
        )
        for r in results
    ]


def arrays_of(sample):
    images = sample.images
    own = () if images is None else (images.pixels_PF, images.grids_I3, images.starts_I)
    return (sample.tokens_T, sample.trained_T, *own)


def array(value):
    return None if value is None else (value.dtype.str, value.shape, value.tobytes())


def several(sample, rng):
    if sample["n"] % 5 == 0:
        return None
    if sample["n"] % 7 == 0:
        raise ValueError(f"row {sample['n']} is bad")
    drawn = rng.integers(0, 1000, 3).tolist()
    return [{**sample, "text": f"{sample['text']} {number}"} for number in drawn[: sample["n"] % 4]]


def masked(sample):
    return {"input_ids": np.arange(sample["n"]), "loss_mask": [number % 2 for number in range(sample["n"])]}


def sized(sample):
    return {"input_ids": [len(value) for value in sample["values"]]}


MIXED = [{"text": "word " * (number % 6), "n": number} if number % 11 else BadRow("no row") for number in range(60)]


@pytest.mark.parametrize(
    ("how", "rows"),
    [
        pytest.param(recipe(several, BYTES, source="several"), MIXED, id="lists, none, failures, draws"),
        pytest.param(recipe(several, BYTES, source="drop", overflow="drop", length=9), MIXED, id="overflow"),
        pytest.param(recipe(masked, source="mask"), [{"n": number} for number in range(40)], id="masks and splits"),
        pytest.param(
            recipe(FilterConfig(field="ids", min_length=3), TokensConfig(), source="filter"),
            [{"ids": np.arange(number % 6)} for number in range(30)],
            id="arrays and a filter",
        ),
        pytest.param(
            recipe(
                ImageConfig(field="png", patch=4, merge=2, max_pixels=576, min_pixels=64, image_token=1001),
                TokensConfig(),
                source="photos",
                length=200,
            ),
            [*image_rows(4, 20, 12), {"png": b"no image", "ids": [1]}],
            id="images",
        ),
        pytest.param(
            recipe(sized, source="sets"),
            [{"values": [{1, 2}] if number % 3 else ["abc"]} for number in range(20)],
            id="values that cannot be sent",
        ),
    ],
)
@pytest.mark.parametrize("num_rows", [1, 2, 200])
def test_rows_give_what_they_give_in_a_thread(processes, how, rows, num_rows):
    asked = numbered(rows, 100)[:num_rows]
    assert plain(in_processes(how, processes).apply(asked)) == plain(how.build().apply(asked))


def test_no_rows_give_nothing(processes):
    assert in_processes(recipe(several, BYTES), processes).apply([]) == []


def test_a_failure_names_the_function_its_file_and_line(processes):
    (result,) = in_processes(recipe(several, BYTES, source="named"), processes).apply([(0, {"text": "a", "n": 7})])
    line = several.__code__.co_firstlineno + 4
    assert result.reason.startswith("ValueError: row 7 is bad (in transform 0 function ")
    assert result.reason.endswith(f"several, test_processes.py line {line})")


def test_rows_are_divided_among_the_processes(processes):
    def where(sample):
        return {"input_ids": [os.getpid()]}

    chain = in_processes(recipe(where, source="where"), processes)
    pids = [int(result.samples[0].tokens_T[0]) for result in chain.apply(numbered([{}] * 10))]
    assert pids == [pids[0]] * 5 + [pids[9]] * 5
    assert len({*pids, os.getpid()}) == 3


def test_many_threads_may_use_them_at_once(processes):
    how = recipe(several, BYTES, source="threads")
    chain, expected = in_processes(how, processes), plain(how.build().apply(numbered(MIXED)))
    with ThreadPoolExecutor(5) as threads:
        for found in threads.map(chain.apply, [numbered(MIXED)] * 20):
            assert plain(found) == expected


def test_what_ends_a_run_is_raised_as_in_a_thread(processes):
    class NoLicence(EngineError):
        pass

    def unreachable(sample):
        raise SourceError("the store does not answer")

    def refuses(sample):
        raise NoLicence("no seat is free")

    for function, kind in ((unreachable, SourceError), (refuses, EngineError)):
        how = recipe(function, source=function.__name__)
        with pytest.raises(kind) as expected:
            how.build().apply([(0, {})])
        for _ in range(2):
            with pytest.raises(kind) as found:
                in_processes(how, processes).apply([(0, {})])
            assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_transform_that_would_end_its_process_is_named_with_its_rows(processes, kind):
    def ends(sample):
        raise kind(3)

    with pytest.raises(EngineError, match=rf"rows 7 to 9 of source '\w+': {kind.__name__}: 3; a transform must not"):
        in_processes(recipe(ends, source=kind.__name__), processes).apply(numbered([{}] * 4, 7))
    assert in_processes(recipe(BYTES, source="after"), processes).apply([(0, {"text": "a"})])[0].samples


def crash(how):
    def ends(sample):
        if sample["n"] == 3:
            how()
        return {"input_ids": [1]}

    return ends


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: os._exit(3), "exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    ],
    ids=["exit", "fault", "kill"],
)
def test_a_process_that_ends_is_replaced_and_names_the_row_that_it_was_at(how, said):
    processes = TransformProcesses(2)
    chain = in_processes(recipe(crash(how)), processes)
    rows = numbered([{"n": number} for number in range(4)], 10)
    try:
        for _ in range(2):
            with pytest.raises(RowsLost) as lost:
                chain.apply(rows)
            assert (lost.value.ordinals, lost.value.how) == ((13,), said)
        assert [len(result.samples) for result in chain.apply(rows[:3])] == [1, 1, 1]
    finally:
        processes.close()


def test_all_processes_are_replaced_when_what_they_come_from_is_gone():
    processes = TransformProcesses(2)
    chain = in_processes(recipe(BYTES), processes)
    before = set(psutil.Process().children())
    try:
        chain.apply([(0, {"text": "a"})])
        (root,) = set(psutil.Process().children()) - before
        root.kill()
        psutil.wait_procs(root.children(), timeout=10)
        with pytest.raises(RowsLost, match="with all others"):
            chain.apply([(7, {"text": "a"})])
        assert chain.apply([(7, {"text": "a"})])[0].samples
    finally:
        processes.close()


def test_processes_start_when_they_are_needed_and_end_when_they_are_closed():
    before = set(psutil.Process().children(recursive=True))
    processes = TransformProcesses(2)
    chain = in_processes(recipe(BYTES), processes)
    assert set(psutil.Process().children(recursive=True)) == before
    chain.apply([(0, {"text": "a"})])
    started = set(psutil.Process().children(recursive=True)) - before
    assert len(started) == 3
    processes.close()
    processes.close()
    psutil.wait_procs(started, timeout=10)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in started)
    with pytest.raises(ClosedError, match="closed with their host"):
        chain.apply([(0, {"text": "a"})])


def test_closing_does_not_wait_for_a_transform_that_hangs(tmp_path):
    began = tmp_path / "began"

    def hangs(sample):
        began.touch()
        while True:
            pass

    processes = TransformProcesses(1)
    chain = in_processes(recipe(hangs), processes)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(chain.apply, [(0, {})])
        deadline = time.monotonic() + 30
        while not began.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        closed_at = time.monotonic()
        processes.close()
        assert time.monotonic() - closed_at < 4
        with pytest.raises(ClosedError):
            found.result(10)


def test_where_transforms_run_follows_the_setting(processes):
    how = recipe(BYTES)
    chain = how.build()

    def place(where, cores):
        return placed(chain, how, processes, transform_in=where, num_cores=cores)

    assert place("threads", 8) is chain
    assert place("auto", 1) is chain
    assert isinstance(place("auto", 2), Measured)
    assert isinstance(place("processes", 1), InProcesses)


def test_a_function_that_cannot_travel_stays_in_threads_or_is_refused(processes):
    lock = threading.Lock()

    def locked(sample):
        with lock:
            return sample

    how = recipe(locked)
    chain = how.build()
    assert placed(chain, how, processes, transform_in="auto", num_cores=8) is chain
    with pytest.raises(ConfigError, match=r"sources.web: its transforms cannot be sent.*lock.*transform_in: threads"):
        placed(chain, how, processes, transform_in="processes", num_cores=8)


class Scripted:
    """A chain whose rows give their own numbers."""

    def __init__(self):
        self.num_rows = 0

    def apply(self, rows):
        self.num_rows += len(rows)
        return [ordinal for ordinal, _ in rows]


@pytest.mark.parametrize(("blocked", "found"), [(1.0, "processes"), (0.0, "threads")])
def test_what_is_measured_decides_for_good_and_changes_no_result(monkeypatch, blocked, found):
    threads = []

    def timed(chain, rows):
        threads.append(threading.current_thread().name)
        wall_s = 0.05 * (1.0 + blocked) if len(rows) < 20 else 0.05
        return chain.apply(rows), Timing(num_rows=len(rows), wall_s=wall_s, cpu_s=0.05)

    ticks = iter(range(1000))
    monkeypatch.setattr(measure, "timed", timed)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(ticks) * 0.05 * (1.0 + blocked))
    chain, other, chosen = Scripted(), Scripted(), []
    measured = Measured(chain, other, on_chosen=chosen.append)
    for first in range(0, 200, 20):
        assert measured.apply(numbered([{}] * 20, first)) == list(range(first, first + 20))
    # One batch warms up, one is measured alone, one by two threads.
    assert chosen == [found]
    assert len(set(threads)) == 2
    assert (chain.num_rows, other.num_rows) == ((60, 140) if found == "processes" else (200, 0))


def test_an_error_of_the_other_thread_is_raised(monkeypatch):
    class Fails(Scripted):
        def apply(self, rows):
            if threading.current_thread() is not threading.main_thread():
                raise SourceError("gone")
            return super().apply(rows)

    monkeypatch.setattr(measure, "is_measured", lambda timing: True)
    monkeypatch.setattr(measure, "shows_in", lambda timing, num_rows: True)
    measured = Measured(Fails(), Scripted(), on_chosen=lambda where: None)
    measured.apply(numbered([{}]))
    with pytest.raises(SourceError, match="gone"):
        measured.apply(numbered([{}] * 4))


def counts(sample):
    total = 0
    for number in range(150_000):  # Some milliseconds anywhere: far above what counts as cheap.
        total += number
    return {"input_ids": [total % 100]}


def compresses(sample):
    return {"input_ids": [len(zlib.compress(NOISE, 1)) % 100]}


NOISE = np.random.default_rng(1).bytes(100_000)


def test_a_loop_in_python_goes_to_processes_and_compression_never_does():
    found = {}
    for function in (counts, compresses):
        chain = recipe(function).build()
        # While no core is free nothing can be told, and what was measured then stays in the sums: it is begun anew.
        for _ in range(12 if function is counts else 1):
            measured = Measured(
                chain, chain, on_chosen=lambda where, name=function.__name__: found.update({name: where})
            )
            for _ in range(40):
                if function.__name__ not in found:
                    measured.apply(numbered([{}] * 16))
    # On a machine without a free core the second may not be known.
    assert found["counts"] == "processes"
    assert found.get("compresses") != "processes"


def spins(sample):
    began_s = time.thread_time()
    while time.thread_time() - began_s < 0.002:
        pass
    time.sleep(0.004)
    return {"input_ids": [1]}


def test_what_rows_took_in_a_process_is_told_and_not_that_they_were_waited_for(processes):
    chain = in_processes(recipe(spins, source="took"), processes)
    chain.apply(numbered([{}]))
    results, timing = measure.timed(chain, numbered([{}] * 8))
    assert len(results) == timing.num_rows == 8
    assert timing.cpu_s >= 8 * 0.002
    assert timing.blocked_s >= 8 * 0.004 - 0.001


def test_rows_that_are_only_measured_are_counted_too():
    spent = Spent()
    placed(
        recipe(spins).build(), recipe(spins), TransformProcesses(1), transform_in="auto", num_cores=8,
        counted=lambda chain: Counted(chain, spent),
    ).apply(numbered([{}] * 4))  # fmt: skip
    found = spent.as_dict()
    assert found["rows_transformed"] == 4
    assert found["transform_cpu_s"] >= 4 * 0.002
