import numpy as np
import pytest

from msd.planner.floors import lockstep_floor
from msd.planner.primitives.layout import Grid, Limit
from msd.planner.primitives.levels import level_buckets, level_rows
from msd.planner.primitives.matches import match
from msd.planner.primitives.trades import Holdings, scattered

CAP = 4096


def packed(num_sequences=32, seed=0, *, slack=8, longest=CAP):
    """Return sequences that are full but for a few tokens, and the documents' lengths: most short, some very long."""
    draw = np.random.default_rng(seed)
    sequences, lengths = [], []
    for _ in range(num_sequences):
        room, held = CAP, []
        while room > slack:
            length = int(np.clip(draw.lognormal(5, 1.5), min(room, 8), min(room, longest)))
            held.append(len(lengths))
            lengths.append(length)
            room -= length
        sequences.append(held)
    return sequences, np.array(lengths, dtype=np.int64)


def costs(length_D):
    return (length_D * (1 << 20) + length_D * length_D * (1 << 10))[:, None]


def nearest(gap):
    def score(change_K, pair_C):
        return np.abs(change_K[0] - gap).astype(np.float64)

    return score


def tokens(sequences, length_D):
    return [int(length_D[docs].sum()) for docs in sequences]


@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize("num_pairs", [1, 3, 16])
def test_a_round_of_trades_moves_documents_and_keeps_caps(turn, num_pairs):
    sequences, length_D = packed()
    holdings = Holdings(sequences, costs(length_D), length_D, CAP, [])
    before = holdings.cost_SK[:, 0]
    giver, taker = np.arange(num_pairs), np.arange(16, 16 + num_pairs)
    made = holdings.trade(giver, taker, nearest(1 << 30), np.full(num_pairs, np.inf), turn)
    held = holdings.lists()
    assert sorted(d for docs in held for d in docs) == list(range(len(length_D)))
    assert max(tokens(held, length_D)) <= CAP
    assert all(held)
    changed = np.flatnonzero(holdings.cost_SK[:, 0] != before)
    assert 0 < made <= num_pairs
    assert set(changed.tolist()) <= {*giver.tolist(), *taker.tolist()}
    assert holdings.cost_SK.sum() == before.sum()


def test_a_trade_that_is_not_good_enough_is_not_made():
    sequences, length_D = packed()
    holdings = Holdings(sequences, costs(length_D), length_D, CAP, [])
    before = holdings.sequence_D.copy()
    assert holdings.trade(np.array([0]), np.array([1]), nearest(1 << 30), np.array([0.0]), 0) == 0
    assert (holdings.sequence_D == before).all()


def test_of_few_documents_the_best_trade_is_found():
    # Giving the document of 4 for one of 3 moves 16 - 9.
    length_D = np.array([4, 3, 2, 1, 3, 3, 2, 2])
    holdings = Holdings([[0, 1, 2, 3], [4, 5, 6, 7]], (length_D**2)[:, None], length_D, 11, [])
    holdings.trade(np.array([0]), np.array([1]), nearest(7), np.array([np.inf]), 0)
    assert holdings.cost_SK[:, 0].tolist() == [30 - 7, 26 + 7]


def test_no_sequence_is_left_without_a_document():
    length_D = np.array([5, 3])
    holdings = Holdings([[0], [1]], length_D[:, None], length_D, 10, [])
    holdings.trade(np.array([0]), np.array([1]), nearest(5), np.array([np.inf]), 0)
    assert all(holdings.lists())


def test_numbers_are_scattered_alike_everywhere_and_otherwise_in_every_turn():
    assert scattered(np.array([0]), 0).tolist() == [0xE220A8397B1DCDAF >> 1]
    assert len({tuple(np.argsort(scattered(np.arange(20), turn)).tolist()) for turn in range(5)}) == 5


def lockstep(sequences, rows, cost_D, grid):
    value = np.array([sum(cost_D[d] for s in row for d in sequences[s]) for row in rows])
    return np.sort(value)[::-1].reshape(grid.num_microbatches, -1)[:, 0].sum() * grid.num_buckets / value.sum() - 1


@pytest.mark.parametrize("per_row", [1, 2])
def test_levelled_rows_have_slots_whose_rows_cost_about_the_same(per_row):
    sequences, length_D = packed(64, longest=1500)
    grid = Grid(8, 8 // per_row, per_row, CAP)
    rows = np.arange(64).reshape(-1, per_row)
    cost_DK = costs(length_D)
    after = level_rows(sequences, rows, cost_DK, length_D, grid)
    assert lockstep(after, rows, cost_DK[:, 0], grid) < 0.004 < lockstep(sequences, rows, cost_DK[:, 0], grid) / 5
    assert max(tokens(after, length_D)) <= CAP


@pytest.mark.parametrize("seed", range(4))
def test_levelling_never_makes_the_slowest_rows_slower(seed):
    sequences, length_D = packed(12, seed)
    grid, rows = Grid(4, 3, 1, CAP), np.arange(12)[:, None]
    cost_DK = costs(length_D)
    after = level_rows(sequences, rows, cost_DK, length_D, grid)
    assert lockstep(after, rows, cost_DK[:, 0], grid) <= lockstep(sequences, rows, cost_DK[:, 0], grid)


def test_levelled_buckets_cost_about_the_same():
    sequences, length_D = packed(32, 3, longest=2000)
    grid, rows = Grid(4, 8, 1, CAP), np.arange(32)[:, None]
    cost_DK = costs(length_D)
    cost_D = cost_DK[:, 0]
    before, after = (
        np.array([cost_D[docs].sum() for docs in held]).reshape(8, 4).sum(axis=0)
        for held in (sequences, level_buckets(sequences, rows, cost_DK, length_D, grid))
    )
    assert after.max() / after.mean() - 1 < 0.005 < before.max() / before.mean() - 1


def test_the_same_step_is_levelled_alike_every_time():
    sequences, length_D = packed()
    grid, rows = Grid(8, 4, 1, CAP), np.arange(32)[:, None]
    first, second = (level_rows(sequences, rows, costs(length_D), length_D, grid) for _ in range(2))
    assert first == second


def test_no_trade_passes_a_limit():
    def only(change):
        return lambda change_K, pair_C: np.where(change_K[0] == change, -1.0, np.inf)

    # Giving the document of 6 for the one of 5 moves 36 - 25.
    length_D = np.array([6, 4, 5, 3], dtype=np.int64)
    for cap, expected in ((2, [[1, 2], [0, 3]]), (1, [[0, 1], [2, 3]])):
        limit = Limit(np.array([0, 1, 1, 0], dtype=np.int64), cap)
        holdings = Holdings([[0, 1], [2, 3]], (length_D**2)[:, None], length_D, 10, [limit])
        made = holdings.trade(np.array([0]), np.array([1]), only(11), np.zeros(1), 0)
        assert made == (cap == 2)
        assert [sorted(held) for held in holdings.lists()] == expected


def halves_and_thirds():
    """Return two rows of 4 + 2 and 3 + 3, and one with 5 + 1: of like length, of unlike cost."""
    length_D = np.array([4, 2, 3, 3, 5, 1], dtype=np.int64)
    return [[0, 1], [2, 3], [4, 5]], length_D, (length_D**2)[:, None]


def test_a_sequence_finds_documents_of_like_length_in_any_other():
    sequences, length_D, cost_DK = halves_and_thirds()
    holdings = Holdings(sequences, cost_DK, length_D, 8, [])
    # Row 0 is to rise by 7: only the swap of its 4 for the 5 comes near that, and only it keeps within 8 tokens.
    match(holdings, np.array([0]), np.arange(3), np.array([[-9.0], [0.0], [9.0]]), 1.0)
    assert sorted(map(sorted, holdings.lists())) == [[0, 5], [1, 4], [2, 3]]


def test_matches_keep_caps_documents_and_limits_and_bring_rows_nearer_to_their_levels():
    sequences, length_D = packed()
    cost_DK = costs(length_D)
    limit = Limit(np.ones_like(length_D), max(map(len, sequences)))
    holdings = Holdings(sequences, cost_DK, length_D, CAP, [limit])
    excess_RK = holdings.cost_SK - holdings.cost_SK.mean(axis=0)
    match(holdings, np.arange(0, 32, 2), np.arange(32), excess_RK, 1.0)
    held = holdings.lists()
    assert sorted(d for docs in held for d in docs) == list(range(len(length_D)))
    assert max(tokens(held, length_D)) <= CAP
    assert max(map(len, held)) <= limit.cap
    after_RK = holdings.cost_SK - holdings.cost_SK.mean(axis=0)
    assert 0 < (after_RK**2).sum() < (excess_RK**2).sum()


@pytest.mark.parametrize(
    ("cap", "least_gain", "expected"),
    [(2, 1.0, [[1, 2], [0, 3]]), (1, 1.0, [[0, 1], [2, 3]]), (2, 1e6, [[0, 1], [2, 3]])],
)
def test_no_match_passes_a_limit_or_is_made_for_less_than_is_asked(cap, least_gain, expected):
    # The document of 6 for the one of 5 moves 36 - 25.
    length_D = np.array([6, 4, 5, 3], dtype=np.int64)
    limit = Limit(np.array([0, 1, 1, 0], dtype=np.int64), cap)
    holdings = Holdings([[0, 1], [2, 3]], (length_D**2)[:, None], length_D, 10, [limit])
    match(holdings, np.array([0]), np.arange(2), np.array([[11.0], [-11.0]]), least_gain)
    assert [sorted(held) for held in holdings.lists()] == expected


def test_levelled_rows_of_few_long_documents_come_near_the_floor():
    sequences, length_D = packed(128)
    grid, rows, cost_DK = Grid(32, 4, 1, CAP), np.arange(128)[:, None], costs(length_D)
    after = level_rows(sequences, rows, cost_DK, length_D, grid)
    floor = lockstep_floor(cost_DK[:, 0].astype(np.float64), length_D, 32, 4, CAP)
    assert floor <= lockstep(after, rows, cost_DK[:, 0], grid) < floor + 0.02
