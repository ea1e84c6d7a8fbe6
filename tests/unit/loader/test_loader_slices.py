import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from msd.core.sample import Outcome
from msd.loader import slices
from msd.loader.counts import Spent
from msd.loader.processes.decide import Timing
from msd.loader.slices import MOST_SLICE_ROWS, Sliced
from msd.loader.transforms.chain import RowResult
from msd.loader.workers import Permits, Threads

ROWS = [(ordinal, {"n": ordinal}) for ordinal in range(64)]


class Chain:
    """Transforms that wait; notes how many threads are in it at once."""

    def __init__(self, *, row_s=0.002, slow=None) -> None:
        self.row_s, self.slow = row_s, slow
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.calls: list[int] = []
        self.fails_at: int | None = None

    def apply(self, rows):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.calls.append(len(rows))
        try:
            if self.fails_at is not None and any(ordinal == self.fails_at for ordinal, _ in rows):
                raise ValueError("this row")
            time.sleep(self.row_s * len(rows))
            return [RowResult(outcome=Outcome.OK, reason=str(ordinal)) for ordinal, _ in rows]
        finally:
            with self.lock:
                self.inside -= 1


def sliced(chain, *, threads=4, most=None) -> Sliced:
    made = Sliced(chain, Threads(threads, "test"), Permits(most), Spent())
    made.apply(ROWS[:1])  # From now on it is known what a row takes.
    return made


def test_results_are_those_of_the_chain_in_order_whoever_did_them():
    chain = Chain()
    found = sliced(chain).apply(ROWS)
    assert [result.reason for result in found] == [str(ordinal) for ordinal, _ in ROWS]
    assert 1 < chain.most <= 5
    assert max(chain.calls[1:]) <= MOST_SLICE_ROWS


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_workers_are_at_it_than_are_permitted(most):
    chain = Chain(row_s=0.0005)
    transforms = sliced(chain, threads=8, most=most)
    callers = [threading.Thread(target=transforms.apply, args=(ROWS,)) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert chain.most == most


@pytest.mark.parametrize(("row_s", "first_slice"), [(0.0, 64), (1e-3, 16), (10e-3, 2)])
def test_rows_are_divided_by_what_they_take_and_cheap_ones_not_at_all(monkeypatch, row_s, first_slice):
    def timed(chain, rows):
        return chain.apply(rows), Timing(num_rows=len(rows), wall_s=row_s * len(rows), cpu_s=row_s * len(rows))

    monkeypatch.setattr(slices, "timed", timed)
    chain = Chain(row_s=0.0)
    transforms = sliced(chain)
    transforms.apply(ROWS)
    assert chain.calls[:2] == [1, first_slice]


def test_what_a_slice_raises_is_raised_and_the_rest_is_not_begun():
    chain = Chain()
    transforms = sliced(chain, threads=2)
    chain.fails_at = 0
    with pytest.raises(ValueError, match="this row"):
        transforms.apply(ROWS)
    chain.fails_at = None
    assert len(transforms.apply(ROWS)) == 64, "permits were given back"


def test_what_workers_took_is_counted():
    spent = Spent()
    transforms = Sliced(Chain(row_s=0.003), Threads(4, "test"), Permits(), spent)
    transforms.apply(ROWS[:8])
    transforms.apply(ROWS[8:])
    found = spent.as_dict()
    assert found["rows_transformed"] == 64
    assert found["transform_s"] >= 64 * 0.003
    assert found["transform_cpu_s"] < found["transform_s"] / 2


def test_permits_that_are_raised_let_who_waits_go_on():
    permits = Permits(1)
    assert permits.take(waits=False)
    assert not permits.take(waits=False)
    went = threading.Event()
    thread = threading.Thread(target=lambda: permits.take() and went.set())
    thread.start()
    permits.allow(2)
    thread.join(30)
    assert went.is_set()


def test_threads_are_made_when_needed_and_as_many_as_are_allowed():
    threads = Threads(2, "test")
    hold, begun = threading.Event(), threading.Semaphore(0)

    def waits() -> None:
        begun.release()
        hold.wait(30)

    assert threads.try_submit(waits)
    assert threads.try_submit(waits)
    assert not threads.try_submit(waits)
    threads.count = 3
    assert threads.try_submit(waits)
    for _ in range(3):
        assert begun.acquire(timeout=30)
    later = threads.submit(lambda: 7)
    hold.set()
    assert later.result(30) == 7
    threads.shutdown(timeout_s=30)
    with pytest.raises(RuntimeError, match="told to end"):
        threads.submit(lambda: None)
    assert not threads.try_submit(lambda: None)


def test_what_work_raises_is_in_its_future():
    threads = Threads(1, "test")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(30)
    assert threads.submit(lambda: 2).result(30) == 2
    threads.shutdown(timeout_s=30)


def test_threads_of_a_pool_that_nobody_holds_end():
    threads = Threads(2, "test-unheld")
    threads.submit(lambda: None).result(30)
    (thread,) = [one for one in threading.enumerate() if one.name.startswith("test-unheld")]
    del threads
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_workers_go_on_with_the_next_batch_while_the_last_rows_of_one_are_done(monkeypatch):
    monkeypatch.setattr(slices, "timed", lambda chain, rows: (chain.apply(rows), Timing(num_rows=1, cpu_s=0.01)))
    last, begun = threading.Event(), []

    class Holds(Chain):
        def apply(self, rows):
            begun.extend(ordinal for ordinal, _ in rows)
            if any(ordinal == 5 for ordinal, _ in rows):
                last.wait(30)
            return [RowResult(outcome=Outcome.OK, reason=str(ordinal)) for ordinal, _ in rows]

    transforms = sliced(Holds(), threads=4)
    found = {}
    batches = {"first": ROWS[:6], "second": ROWS[10:20]}
    callers = [
        threading.Thread(target=lambda name=name, rows=rows: found.update({name: transforms.apply(rows)}))
        for name, rows in batches.items()
    ]
    callers[0].start()
    while 5 not in begun:
        time.sleep(0.001)
    callers[1].start()
    callers[1].join(30)
    assert "second" in found
    assert "first" not in found
    last.set()
    callers[0].join(30)
    for name, rows in batches.items():
        assert [result.reason for result in found[name]] == [str(ordinal) for ordinal, _ in rows]


def test_many_batches_at_once_are_each_answered_in_full():
    chain = Chain(row_s=0.0005)
    transforms = sliced(chain, threads=6, most=4)
    transforms.apply(ROWS)
    with ThreadPoolExecutor(5) as callers:
        for found in callers.map(transforms.apply, [ROWS[:number] for number in range(1, 65, 3)]):
            assert [result.reason for result in found] == [str(ordinal) for ordinal, _ in ROWS[: len(found)]]
    assert chain.most <= 4
    assert not transforms._waiting
