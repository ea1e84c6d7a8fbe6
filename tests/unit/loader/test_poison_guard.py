"""Rows that are suspected run apart and give what they give; those that are killed are never run again."""

import contextlib
import os
import signal
import threading
import time

import pytest

from msd.core.order import SourceOrder
from msd.core.sample import Outcome, SampleId
from msd.errors import ConfigError, EngineError
from msd.loader.loader import KILLED_REASON, SourceLoader
from msd.loader.poison.guard import Guarded
from msd.loader.poison.notes import CrashNotes, Ended
from msd.loader.poison.precautions import Precautions
from msd.loader.poison.suspects import Killed, RowsKilled, RowsLost, Suspects
from msd.loader.poison.watch import EXIT_STATUS, Watch
from msd.loader.processes.recipe import ChainRecipe
from msd.loader.transforms.config import FunctionConfig, TokensConfig
from msd.testing.fakes import list_source
from msd.testing.poison import KillAt, RaiseMemoryErrorAt

ROWS = [{"ids": [number], "n": number} for number in range(20)]
IDS = TokensConfig()


@pytest.fixture
def precautions(tmp_path):
    with contextlib.closing(Precautions(tmp_path / "notes", {"web": 60.0})) as precautions:
        yield precautions


def recipe(function):
    return ChainRecipe(
        source="web",
        transforms=[FunctionConfig(function=function), IDS],
        seed=5,
        sequence_length=16,
        overflow="split",
    )


def guarded(precautions, function, placed=None):
    how = recipe(function)
    chain = how.build()
    return precautions.guarded(chain, how, precautions.noted(chain) if placed is None else placed)


def loader_of(precautions, function, epochs=1):
    table, reader = list_source(ROWS)
    order = SourceOrder(seed=5, source="web", blocks=table, shuffle=False, window_blocks=4)
    return SourceLoader(
        order=order,
        reader=reader,
        chain=guarded(precautions, function),
        total_ordinals=epochs * len(ROWS),
        suspects=precautions.suspects,
    )


def numbered(*ordinals):
    return [(ordinal, ROWS[ordinal]) for ordinal in ordinals]


def tokens(results):
    return [[sample.tokens_T.tolist() for sample in result.samples] for result in results]


def unharmed(sample):
    return sample


class Scripted:
    """A chain that loses rows as long as they are among those that it is given."""

    def __init__(self, chain, *lost):
        self.chain = chain
        self.lost = lost
        self.asked = []

    def apply(self, rows):
        self.asked.append([ordinal for ordinal, _ in rows])
        found = [ordinal for ordinal, _ in rows if ordinal in self.lost]
        if found:
            raise RowsLost(found[:1], "SIGSEGV")
        return self.chain.apply(rows)


def test_rows_that_a_process_was_lost_with_run_apart_and_all_come_in_order(precautions):
    scripted = Scripted(recipe(unharmed).build(), 3, 5)
    found = guarded(precautions, unharmed, scripted).apply(numbered(2, 3, 4, 5))
    assert tokens(found) == [[[2]], [[3]], [[4]], [[5]]]
    assert scripted.asked == [[2, 3, 4, 5], [2, 4, 5], [2, 4]]
    assert precautions.suspects.isolated("web") == {3, 5}
    lost = [Ended((("web", ordinal),), "SIGSEGV") for ordinal in (3, 5)]
    assert precautions.suspects.news(0) == (2, lost)


def test_rows_that_nothing_is_known_of_are_not_run_apart(precautions):
    scripted = Scripted(recipe(unharmed).build())
    guarded(precautions, unharmed, scripted).apply(numbered(0, 1))
    precautions.suspects.isolate([("images", 0)])
    guarded(precautions, unharmed, scripted).apply(numbered(0, 1))
    assert scripted.asked == [[0, 1], [0, 1]]


def test_all_rows_apart_ask_the_chain_for_nothing(precautions):
    scripted = Scripted(recipe(unharmed).build())
    precautions.suspects.isolate([("web", 0), ("web", 1)])
    assert tokens(guarded(precautions, unharmed, scripted).apply(numbered(0, 1))) == [[[0]], [[1]]]
    assert scripted.asked == []


def test_a_row_that_ends_its_own_process_is_told_with_all_others_of_the_batch(precautions):
    precautions.suspects.isolate([("web", 2), ("web", 3), ("web", 4)])
    with pytest.raises(RowsKilled) as found:
        guarded(precautions, KillAt(2, 4)).apply(numbered(1, 2, 3, 4))
    assert found.value.killed == (Killed("web", 2, "SIGKILL"), Killed("web", 4, "SIGKILL"))


def test_a_row_for_which_memory_was_lacking_once_is_an_ordinary_row(precautions):
    refused = []

    def scarce(sample):
        if sample["n"] == 3 and not refused:
            refused.append(3)
            raise MemoryError
        return sample

    chain = precautions.noted(recipe(scarce).build())
    found = guarded(precautions, unharmed, chain).apply(numbered(2, 3))
    assert tokens(found) == [[[2]], [[3]]]
    assert precautions.suspects.news(0)[1] == [Ended((("web", 3),), "MemoryError")]


def test_a_chain_without_memory_for_any_row_has_all_run_apart(precautions):
    class Short:
        def apply(self, rows):
            raise MemoryError

    assert tokens(guarded(precautions, unharmed, Short()).apply(numbered(2, 3))) == [[[2]], [[3]]]


def test_without_precautions_a_row_that_lacks_memory_failed():
    (result,) = recipe(RaiseMemoryErrorAt(3)).build().apply(numbered(3))
    assert (result.outcome, result.lacked_memory) == (Outcome.FAILED, True)
    assert result.reason.startswith("MemoryError: unable to allocate 9 PiB (in transform 0 function")


def test_a_function_that_cannot_be_sent_runs_here_and_its_row_is_noted_as_alone(tmp_path):
    lock = threading.Lock()
    seen = []

    def locked(sample):
        with lock:
            seen.extend(entry.is_alone for entry in precautions._notes.in_hand())
        return sample

    with contextlib.closing(Precautions(tmp_path / "notes", {"web": 60.0})) as precautions:
        chain = guarded(precautions, locked)
        chain.apply(numbered(2, 3))
        precautions.suspects.isolate([("web", 3)])
        assert tokens(chain.apply(numbered(2, 3))) == [[[2]], [[3]]]
    assert seen == [False, False, False, True]


def test_a_killed_row_is_told_as_often_as_it_is_asked_for_and_answered_once_it_is_avoided(precautions, tmp_path):
    tries = tmp_path / "tries"

    def kills(sample):
        if sample["n"] == 4:
            with tries.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    loader = loader_of(precautions, kills)
    precautions.suspects.isolate([("web", 4)])
    for _ in range(2):
        with pytest.raises(RowsKilled):
            loader.examine(0, 8)
    assert precautions.suspects.news(0)[1] == [Killed("web", 4, "SIGKILL")] * 2
    assert tries.read_text() == "x"
    precautions.suspects.avoid("web", 4, 4, "killed")
    table = loader.examine(0, 8)
    assert table.outcome_R.tolist() == [0, 0, 0, 0, Outcome.KILLED, 0, 0, 0]
    assert table.num_parts_R.tolist() == [1, 1, 1, 1, 0, 1, 1, 1]
    assert [(each.ordinal, each.row, each.reason) for each in table.failures] == [(4, 4, KILLED_REASON)]
    counts = loader.counts()
    assert (counts["killed_rows"], counts["failed_rows"], counts["rows_examined"]) == (1, 0, 8)


def test_a_row_that_killed_runs_apart_from_the_beginning_in_later_epochs(precautions):
    loader = loader_of(precautions, unharmed, epochs=3)
    loader.examine(20, 20)
    assert precautions.suspects.isolated("web") == frozenset()
    precautions.suspects.avoid("web", 4, 4, "killed")
    for start in (0, 20, 40):
        loader.examine(start, 20)
    assert precautions.suspects.isolated("web") == {4, 24, 44}


def test_a_row_that_is_killed_when_it_is_made_again_ends_the_run(precautions):
    loader = loader_of(precautions, KillAt(4))
    precautions.suspects.isolate([("web", 4)])
    message = r"row 4 of 'shard-000' \(source 'web', ordinal 4\) gave samples when it was examined.*\(SIGKILL\)"
    with pytest.raises(EngineError, match=message):
        loader.fetch([SampleId("web", 4, 0)])
    assert precautions.suspects.news(0)[1] == []
    precautions.suspects.avoid("web", 4, 4, "killed")
    with pytest.raises(EngineError, match=r"ordinal 4\) gave samples when it was examined.*\(it was killed\)"):
        loader.fetch([SampleId("web", 4, 0)])


def test_rows_that_somebody_passes_over_are_not_run_but_can_be_made_for_whoever_drew_them_before(precautions):
    run = []

    def counted(sample):
        run.append(sample["n"])
        return sample

    loader = loader_of(precautions, counted)
    precautions.suspects.avoid("web", 2, 5, "skip")
    table = loader.examine(0, 8)
    assert table.outcome_R.tolist() == [0, 0, *[Outcome.SKIPPED] * 4, 0, 0]
    assert (run, table.failures, loader.counts()["skipped_rows"]) == ([0, 1, 6, 7], (), 4)
    assert loader.fetch([SampleId("web", 3, 0)]).tokens.tolist() == [3]


def test_what_is_avoided_is_known_by_range_and_killed_says_more_than_passed_over():
    suspects = Suspects()
    suspects.avoid("web", 3, 3, "killed")
    suspects.avoid("web", 2, 4, "skip")
    expected = {2: Outcome.SKIPPED, 3: Outcome.KILLED, 4: Outcome.SKIPPED}
    assert suspects.avoided("web", 0, 10) == expected
    assert suspects.avoided("web", 3, 4) == {3: Outcome.KILLED}
    assert suspects.avoided("web", 5, 10) == suspects.avoided("images", 0, 10) == {}
    with pytest.raises(ConfigError, match="avoided for one of skip, killed, got 'tired'"):
        suspects.avoid("web", 1, 1, "tired")


def test_news_stay_until_they_are_known_to_have_come():
    suspects = Suspects()
    woken = []
    suspects.on_news = lambda: woken.append(True)
    first, second = Killed("web", 1, "SIGSEGV"), Ended((("web", 2),), "SIGKILL")
    suspects.tell(first)
    assert suspects.news(0) == suspects.news(0) == (1, [first])
    suspects.struck(second)
    assert suspects.news(1) == (2, [second])
    assert not suspects.wait_told(0)
    assert suspects.news(2) == (2, [])
    assert suspects.wait_told(0)
    assert (len(woken), suspects.isolated("web")) == (2, {2})


def test_a_row_that_ended_a_host_though_it_was_alone_is_told_as_killed():
    suspects = Suspects()
    suspects.struck(Ended((("web", 2),), "process 7 ended", is_alone=True))
    assert suspects.news(0)[1] == [Killed("web", 2, "process 7 ended")]


class Watched:
    """Notes under a watch that ends nothing."""

    def __init__(self, folder, memory=None):
        self.suspects = Suspects()
        self.notes = CrashNotes(folder, ["web", "slow"])
        self.ended = threading.Event()
        self.statuses = []
        self.watch = Watch(
            self.notes, self.suspects, hang_s={"web": 0.3, "slow": 60.0}, memory=memory, end=self._end
        )  # fmt: skip

    def _end(self, status):
        self.statuses.append((status, [(entry.ordinals, entry.mark, entry.is_told) for entry in self.notes.in_hand()]))
        self.ended.set()

    def close(self):
        self.watch.close()
        self.notes.close()


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_row_that_hangs_ends_the_host_and_is_told_or_noted(tmp_path, is_heard):
    with contextlib.closing(Watched(tmp_path)) as watched:
        if is_heard:
            heard = threading.Thread
            watched.suspects.on_news = lambda: heard(target=lambda: watched.suspects.news(1)).start()
        with watched.notes.hold("slow", [4]), watched.notes.hold("web", [7, 8]) as slot:
            slot.at(8)
            assert watched.ended.wait(30)
    how = "no answer for 0.3 s"
    (ended,) = watched.statuses
    assert ended == (EXIT_STATUS, [((4,), "", False), ((8,), how, is_heard)])
    assert watched.suspects.isolated("web") == {8}
    if not is_heard:
        assert watched.suspects.news(0)[1] == [Ended((("web", 8),), how)]


def test_rows_that_are_done_together_have_the_time_of_all(tmp_path):
    with contextlib.closing(Watched(tmp_path)) as watched, watched.notes.hold("web", range(50)):
        assert not watched.ended.wait(1.0)


def test_a_host_that_holds_too_much_ends_because_of_what_is_in_hand(tmp_path):
    with contextlib.closing(Watched(tmp_path, memory=1 << 20)) as watched:
        assert not watched.ended.wait(0.5)
        with watched.notes.hold("web", [7]), watched.notes.hold("slow", [9]):
            assert watched.ended.wait(30)
    (ended,) = watched.statuses
    assert ended == (EXIT_STATUS, [((7,), "more than 0.000977 GiB", False), ((9,), "more than 0.000977 GiB", False)])


def test_the_watch_says_that_threads_run(tmp_path):
    with contextlib.closing(Watched(tmp_path)) as watched:
        (path,) = tmp_path.iterdir()
        before = path.read_bytes()[:16]
        deadline = time.monotonic() + 30
        while path.read_bytes()[:16] == before:
            assert time.monotonic() < deadline
            watched.ended.wait(0.05)


def test_a_chain_says_which_row_it_is_at():
    said = []
    recipe(unharmed).build().apply(numbered(2, 3), said.append)
    # The function, the tokens, and what makes samples of them: each of all rows before the next.
    assert said == [-1, 2, 3, -1, 2, 3, -1]


def test_a_guard_is_equal_to_its_chain_where_nothing_happens(precautions):
    chain = recipe(unharmed).build()
    found = Guarded("web", chain, None, precautions.suspects).apply(numbered(*range(20)))
    assert tokens(found) == tokens(chain.apply(numbered(*range(20))))
