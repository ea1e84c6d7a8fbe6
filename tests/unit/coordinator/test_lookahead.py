import pytest

from msd.coordinator.lookahead import FIRST_ROWS, Lookahead, RowRequest
from msd.core.allocation import STRIPE_ROWS
from msd.core.order import SourceOrder
from msd.testing.blocks import made_up_blocks
from msd.testing.tables import row, table_of


def make(*, rows_B=(50,) * 8, total=None, start=0, share_bytes=1 << 20) -> Lookahead:
    order = SourceOrder(seed=1, source="web", blocks=made_up_blocks(rows_B), shuffle=True, window_blocks=2)
    return Lookahead(order, total=total, start=start, share_bytes=share_bytes)


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
    lookahead = make(share_bytes=1)
    (request,) = lookahead.requests()
    lookahead.arrive(answer(request))
    lookahead.consume(2)
    lookahead.starve(4)
    assert lookahead.requests() == []
    lookahead.starve(needed)
    assert sum(request.num_rows for request in lookahead.requests()) >= needed - 7


def test_bytes_of_consumed_rows_no_longer_count():
    lookahead = make(share_bytes=1)
    (request,) = lookahead.requests()
    lookahead.arrive(answer(request))
    lookahead.consume(8)
    assert spans(lookahead.requests())[0][0] == 8
