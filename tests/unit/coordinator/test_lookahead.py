import pytest

from msd.coordinator.lookahead import FIRST_ROWS, Lookahead, RowRequest, Waiting
from msd.core.allocation import STRIPE_ROWS
from msd.core.order import SourceOrder
from msd.core.unbounded import UnboundedOrder
from msd.testing.blocks import made_up_blocks
from msd.testing.tables import row, table_of


def make(*, rows_B=(50,) * 8, total=None, start=0, ahead_bytes=1 << 20) -> Lookahead:
    order = SourceOrder(seed=1, source="web", blocks=made_up_blocks(rows_B), shuffle=True, window_blocks=2)
    return Lookahead(order, total=total, start=start, waiting=Waiting(ahead_bytes, 1))


def unending(*, start=0) -> Lookahead:
    order = UnboundedOrder(seed=1, source="web", admissions=None, shuffle=True, window="auto")
    return Lookahead(order, total=None, start=start, waiting=Waiting(1 << 20, 1))


def answer(request: RowRequest, length: int = 10):
    return table_of("web", request.start, [row(length)] * request.num_rows)


def spans(requests) -> list[tuple[int, int]]:
    return [(request.start, request.num_rows) for request in requests]


def test_a_row_is_asked_for_once():
    lookahead = make()
    assert spans(lookahead.requests()) == [(0, FIRST_ROWS)]
    assert lookahead.requests() == []


def test_hunger_doubles_what_is_asked_ahead():
    lookahead = make()
    lookahead.requests()
    lookahead.starve(8)
    assert spans(lookahead.requests()) == [(8, FIRST_ROWS)]
    lookahead.starve(8)
    assert lookahead.requests() == []


def test_hunger_for_rows_that_are_on_their_way_asks_for_no_more_of_them():
    lookahead = make()
    lookahead.requests()
    lookahead.starve(8)
    for request in [RowRequest("web", 0, 8), *lookahead.requests()]:
        lookahead.arrive(answer(request))
        lookahead.starve(min(request.start + 8, 15))
        assert lookahead.wanted == 2 * FIRST_ROWS
    lookahead.starve(16)
    assert (lookahead.wanted, spans(lookahead.requests())) == (4 * FIRST_ROWS, [(16, 16)])


def test_a_request_stays_within_a_window_and_a_chunk():
    lookahead = make(start=90)
    lookahead.starve(90)
    for _ in range(6):
        lookahead.consume(90 + 200)
    asked = spans(lookahead.requests())
    assert asked[0] == (90, 10)
    assert all(start // 100 == (start + count - 1) // 100 and count <= STRIPE_ROWS for start, count in asked)
    assert sum(count for _, count in asked) == asked[-1][0] + asked[-1][1] - 90


def test_nothing_is_asked_past_the_end():
    lookahead = make(total=5)
    assert spans(lookahead.requests()) == [(0, 5)]
    lookahead.starve(5)
    assert lookahead.requests() == []


def test_a_source_without_rows_is_asked_for_nothing():
    assert make(rows_B=()).requests() == []


def test_tables_come_out_in_order_whatever_the_order_they_came_in():
    lookahead = make()
    first = lookahead.requests()
    lookahead.starve(8)
    second = lookahead.requests()
    assert lookahead.arrive(answer(second[0])) == []
    assert [table.start for table in lookahead.arrive(answer(first[0]))] == [0, 8]


def test_a_table_that_comes_twice_or_that_nobody_asked_for_is_left_out():
    lookahead = make()
    (request,) = lookahead.requests()
    assert lookahead.arrive(answer(RowRequest("web", 40, 8))) == []
    assert lookahead.arrive(answer(RowRequest("web", 0, 4))) == []
    assert len(lookahead.arrive(answer(request))) == 1
    assert lookahead.arrive(answer(request)) == []


def test_what_is_asked_again_is_asked_in_the_same_pieces_so_that_any_answer_counts():
    lookahead = make()
    first = lookahead.requests()
    lookahead.starve(8)
    second = lookahead.requests()
    lookahead.arrive(answer(second[0]))
    lookahead.ask_again(lambda request: True)
    assert lookahead.requests() == first
    assert [table.start for table in lookahead.arrive(answer(first[0]))] == [0, 8]
    assert lookahead.requests() == []


def test_only_what_concerns_the_lost_is_asked_again():
    lookahead = make()
    lookahead.requests()
    lookahead.starve(8)
    lookahead.requests()
    lookahead.ask_again(lambda request: request.start == 8)
    assert spans(lookahead.requests()) == [(8, 8)]


@pytest.mark.parametrize("needed", [30, 31])
def test_past_its_bytes_a_source_is_asked_for_what_is_needed_and_no_more(needed):
    lookahead = make(ahead_bytes=1)
    (request,) = lookahead.requests()
    lookahead.arrive(answer(request))
    lookahead.consume(2)
    lookahead.starve(4)
    assert lookahead.requests() == []
    lookahead.starve(needed)
    assert sum(request.num_rows for request in lookahead.requests()) >= needed - 7


def test_bytes_of_consumed_rows_no_longer_count():
    lookahead = make(ahead_bytes=1)
    (request,) = lookahead.requests()
    lookahead.arrive(answer(request))
    lookahead.consume(8)
    assert spans(lookahead.requests())[0][0] == 8


def settled(lookahead: Lookahead, *, steps: int, rows: int, length: int) -> None:
    """Draw so many rows a step, all of which arrive."""
    at = lookahead.consumed
    for _ in range(steps):
        for request in lookahead.requests():
            lookahead.arrive(answer(request, length))
        while lookahead.observed < at + rows:
            lookahead.starve(lookahead.observed)
            for request in lookahead.requests():
                lookahead.arrive(answer(request, length))
        at += rows
        lookahead.consume(at)


def waiting_rows(lookahead: Lookahead) -> int:
    """Have a source asked for as much as may be, all of which arrives, and return how many rows wait."""
    while requests := lookahead.requests():
        for request in requests:
            lookahead.arrive(answer(request, 100))
    return lookahead.observed - lookahead.consumed


def test_bytes_go_to_sources_as_steps_take_them():
    """Answers DK-6, of sources together."""
    waiting = Waiting(200_000, 3)
    sources = [
        Lookahead(
            SourceOrder(seed=1, source="web", blocks=made_up_blocks((50,) * 80), shuffle=True, window_blocks=2),
            total=None,
            start=0,
            waiting=waiting,
        )
        for _ in range(3)
    ]
    for _ in range(20):
        settled(sources[0], steps=1, rows=200, length=100)
        settled(sources[1], steps=1, rows=20, length=100)
    much, little, nothing = map(waiting_rows, sources)
    assert much > 4 * little, "ten times as much is taken of the first"
    assert little >= 20
    assert nothing > 0
    held = (much + little + nothing) * 400
    assert held <= 200_000 + 3 * STRIPE_ROWS * 400


def test_rows_on_their_way_count_as_those_that_arrived():
    lookahead = make(ahead_bytes=40_000)
    settled(lookahead, steps=20, rows=100, length=100)
    num_asked = sum(request.num_rows for request in lookahead.requests())
    assert lookahead.asked - lookahead.consumed <= 40_000 // 400 + STRIPE_ROWS
    assert num_asked > 0


def some(start: int, count: int):
    return table_of("web", start, [row(10)] * count)


def test_what_is_still_to_come_of_a_request_is_asked_for_as_what_it_is():
    lookahead = unending()
    lookahead.requests()
    assert [table.end for table in lookahead.arrive(some(0, 3))] == [3]
    assert lookahead.repeats
    assert spans(lookahead.requests()) == [(3, FIRST_ROWS - 3)]
    assert lookahead.requests() == []
    assert [table.end for table in lookahead.arrive(some(3, 1))] == [4]
    lookahead.requests()
    assert [table.end for table in lookahead.arrive(some(4, FIRST_ROWS - 4))] == [FIRST_ROWS]
    assert lookahead.unanswered() == []


def test_parts_that_come_twice_or_late_count_once():
    lookahead = unending()
    lookahead.requests()
    for _ in range(2):
        lookahead.arrive(some(0, 3))
    assert lookahead.arrive(some(0, FIRST_ROWS)) == []
    lookahead.arrive(some(3, FIRST_ROWS - 3))
    assert lookahead.observed == FIRST_ROWS
    assert lookahead.arrive(some(3, 1)) == []


def test_a_part_is_no_answer_where_all_rows_are_there():
    lookahead = make()
    lookahead.requests()
    assert lookahead.arrive(some(0, 3)) == []
    assert spans(lookahead.unanswered()) == [(0, FIRST_ROWS)]


def test_nothing_is_no_part():
    lookahead = unending()
    lookahead.requests()
    assert lookahead.arrive(some(0, 0)) == []
    assert spans(lookahead.unanswered()) == [(0, FIRST_ROWS)]
