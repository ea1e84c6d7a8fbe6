import os

import pytest

from msd.errors import ConfigError, SourceError
from msd.sources import unending as unendings
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.ledger import Ledger
from msd.sources.queue import RowsThatAreTaken, rows_to_file
from msd.sources.unending import Unending


class Broker:
    """Holds messages, and what consumers acknowledged, as a server would."""

    def __init__(self, count: int = 0) -> None:
        self.messages = [{"text": f"message {number}"} for number in range(count)]
        self.acknowledged: set[int] = set()
        self.calls: list[tuple] = []


class WithOffsets:
    """A log with offsets: a consumer is told where to begin."""

    def __init__(self, broker: Broker, most: int = 3) -> None:
        self.broker, self.most, self.at = broker, most, 0

    def take(self, max_rows, timeout_s):
        assert max_rows >= 1
        assert 0 < timeout_s < 1
        found = self.broker.messages[self.at : self.at + min(max_rows, self.most)]
        self.at += len(found)
        return found

    def position(self):
        return {"offset": self.at}

    def seek(self, position):
        self.broker.calls.append(("seek", position["offset"]))
        self.at = position["offset"]


class WithAcknowledgements:
    """A work queue: what a consumer took and did not acknowledge is delivered to the next."""

    def __init__(self, broker: Broker, most: int = 3) -> None:
        self.broker, self.most, self.taken = broker, most, []

    def take(self, max_rows, timeout_s):
        waiting = [n for n in range(len(self.broker.messages)) if n not in self.broker.acknowledged | set(self.taken)]
        chosen = waiting[: self.most]
        self.taken += chosen
        return [self.broker.messages[number] for number in chosen]

    def done(self):
        self.broker.acknowledged |= set(self.taken)
        self.taken = []

    def close(self):
        self.broker.calls.append(("close",))


def unending(folder, kind, broker, **settings) -> Unending:
    config = ReaderConfig(
        format="queue", cls=kind, options={"broker": broker}, spool=str(folder), **{"poll_s": 0.01, **settings}
    )
    return Unending("events", config, consumes=True)


def kept(found: Unending) -> list:
    rows = []
    for number in range(len(found.ledger)):
        admitted = found.admitted(found.ledger.entry(number))
        reader = found.open_reader(admitted)
        for block in range(admitted.blocks.num_blocks):
            rows += reader.read_block(block, admitted.blocks.kept_rows(block))
        reader.close()
    return rows


def spooled(folder) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("rows-"))


@pytest.mark.parametrize("kind", [WithOffsets, WithAcknowledgements])
def test_what_is_taken_is_kept_once_and_in_order(tmp_path, kind):
    broker = Broker(10)
    found = unending(tmp_path, kind, broker)
    assert found.admit_to(8) == 9
    assert found.admit_to(100) == 10
    assert found.admit_to(100) == 10
    assert kept(found) == broker.messages
    again = unending(tmp_path, kind, broker)
    assert again.admit_to(100) == 10
    assert kept(again) == broker.messages


def test_rows_are_durable_before_the_queue_may_forget_them(tmp_path):
    broker = Broker(3)
    found = unending(tmp_path, WithAcknowledgements, broker)
    append = found.ledger.append

    def watched(**said):
        assert broker.acknowledged == set()
        assert spooled(tmp_path) == [said["name"]]
        return append(**said)

    found.ledger.append = watched
    found.admit_to(3)
    assert broker.acknowledged == {0, 1, 2}


class Ended(BaseException):
    """Stands for a process that ends where it is raised."""


@pytest.mark.parametrize("kind", [WithOffsets, WithAcknowledgements])
def test_an_end_between_keeping_and_admitting_loses_nothing_and_repeats_nothing(tmp_path, kind):
    broker = Broker(5)
    found = unending(tmp_path, kind, broker)

    def ends(**said):
        raise Ended

    found.ledger.append = ends
    with pytest.raises(Ended):
        found.admit_to(1)
    assert len(spooled(tmp_path)) == 1
    again = unending(tmp_path, kind, broker)
    again.admit_to(100)
    assert kept(again) == broker.messages


def test_an_end_between_admitting_and_acknowledging_repeats_nothing_where_the_queue_can_be_asked_to_go_on(
    tmp_path, monkeypatch
):
    def ends(self, entry):
        raise Ended

    for kind, repeated in ((WithOffsets, 0), (WithAcknowledgements, 3)):
        broker = Broker(5)
        folder = tmp_path / kind.__name__
        with monkeypatch.context() as patch:
            patch.setattr(RowsThatAreTaken, "admitted", ends)
            with pytest.raises(Ended):
                unending(folder, kind, broker).admit_to(1)
        again = unending(folder, kind, broker)
        again.admit_to(100)
        assert kept(again) == broker.messages[:repeated] + broker.messages


def test_two_consumers_with_offsets_give_each_message_one_place(tmp_path):
    broker = Broker(30)
    one, two = (unending(tmp_path, WithOffsets, broker) for _ in range(2))
    for end in range(1, 40, 2):
        one.admit_to(end)
        two.admit_to(end + 1)
    assert kept(one) == kept(two) == broker.messages
    assert len(spooled(tmp_path)) == len(one.ledger)


def test_a_consumer_that_finds_that_another_was_first_goes_on_behind_it(tmp_path):
    broker = Broker(6)
    one, two = (unending(tmp_path, WithOffsets, broker) for _ in range(2))
    append = one.ledger.append

    def late(**said):
        one.ledger.append = append
        two.admit_to(3)
        return append(**said)

    one.ledger.append = late
    assert one.admit_to(100) == 6
    assert kept(one) == broker.messages
    assert len(spooled(tmp_path)) == 2


def test_a_consumer_with_acknowledgements_that_was_late_offers_what_it_has_again(tmp_path):
    broker = Broker(6)
    one, two = (unending(tmp_path, WithAcknowledgements, broker) for _ in range(2))
    append = one.ledger.append

    def late(**said):
        one.ledger.append = append
        # Another consumer of one broker gets other messages.
        two._arrivals = two._new_arrivals()
        two._arrivals._queue().taken = [0, 1, 2]
        two._arrivals._made.taken = [*range(3)]
        two.admit_to(1)
        return append(**said)

    one.ledger.append = late
    assert one.admit_to(6) == 6
    assert sorted(row["text"] for row in kept(one)) == [row["text"] for row in broker.messages]


def test_a_command_that_only_shows_takes_nothing(tmp_path):
    broker = Broker(5)
    shows = unending(tmp_path, WithOffsets, broker)
    shows.consumes = False
    assert shows.admit_to(5) == 0
    assert "only a run takes from" in shows.lack
    assert not spooled(tmp_path)


def test_rows_of_any_kind_come_back_as_they_were_and_others_are_bad(tmp_path):
    rows = [
        {"text": "täxt", "n": 2**40, "f": 0.5, "none": None, "flag": True},
        {"other": [1, "two", {"three": 3}]},
        {"bytes": b"\x00\xff"},
        "plain",
        17,
        {"far": object()},
    ]
    broker = Broker()
    broker.messages = rows
    found = unending(tmp_path, WithOffsets, broker)
    found.admit_to(100)
    *good, number, far = kept(found)
    assert good == [*rows[:3], {"text": "plain"}]
    assert isinstance(number, BadRow)
    assert "is a int" in number.reason
    assert isinstance(far, BadRow)
    assert "cannot be kept" in far.reason


def test_what_is_taken_at_once_is_cut_in_blocks():
    _, blocks = rows_to_file([{"text": "x" * 100} for _ in range(10)], 250)
    assert [rows for _, rows, _, _ in blocks] == [2] * 5
    assert [unit for unit, _, _, _ in blocks] == [*range(5)]


def test_a_consumer_is_closed_and_what_it_kept_and_did_not_admit_goes(tmp_path):
    broker = Broker(3)
    found = unending(tmp_path, WithAcknowledgements, broker)
    found._arrivals = found._new_arrivals()
    assert found._arrivals.next(Ledger(str(tmp_path), source="events", takes="queue")) is not None
    found.close()
    assert broker.calls == [("close",)]
    assert not spooled(tmp_path)
    found.close()


class Broken:
    def __init__(self, broker) -> None:
        self.broker = broker


class Raises(Broken):
    def take(self, max_rows, timeout_s):
        raise TimeoutError("broker gone")


def test_a_queue_that_raises_is_waited_for_told_of_and_made_anew(tmp_path, caplog):
    broker = Broker(3)
    clock = [0.0]
    found = unending(tmp_path, Raises, broker)
    found._clock = lambda: clock[0]
    for _ in range(3):
        assert found.admit_to(1) == 0
        clock[0] += 1
    assert found.lack.endswith("Raises, which raised TimeoutError: broker gone in take")
    assert caplog.text.count("broker gone") == 1
    found._arrivals._config = ReaderConfig(
        format="queue", cls=WithOffsets, options={"broker": broker}, spool=str(tmp_path)
    )
    assert found.admit_to(3) == 3
    assert "raised" not in found.lack


class LosesDone(WithAcknowledgements):
    def done(self):
        raise ConnectionError("too late")


def test_an_acknowledgement_that_fails_ends_nothing(tmp_path):
    broker = Broker(2)
    found = unending(tmp_path, LosesDone, broker)
    assert found.admit_to(2) == 2
    assert kept(found) == broker.messages


class NoList(Broken):
    def take(self, max_rows, timeout_s):
        return {"a": 1}


class HalfASeek(Broken):
    def take(self, max_rows, timeout_s):
        return []

    def seek(self, position): ...


class OddPosition(WithOffsets):
    def position(self):
        return {1, 2}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Broken, r"without take\(max_rows, timeout_s\)"),
        (NoList, "take returned a dict"),
        (HalfASeek, "one of seek and position"),
        (OddPosition, "position returned what JSON does not hold"),
    ],
)
def test_a_class_that_does_not_keep_to_it_is_told_in_one_line(tmp_path, kind, said):
    with pytest.raises(SourceError, match=said) as error:
        unending(tmp_path, kind, Broker(3)).admit_to(1)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("sources.events: ")


def test_a_class_that_cannot_be_found_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"sources\.events\.cls"):
        unending(tmp_path, "nowhere.at.all:Class", Broker())


def test_only_so_much_is_admitted_by_one_call(tmp_path, monkeypatch):
    monkeypatch.setattr(unendings, "MOST_AT_ONCE", 2)
    broker = Broker(100)
    found = unending(tmp_path, WithOffsets, broker)
    assert [found.admit_to(100) for _ in range(2)] == [6, 12]
