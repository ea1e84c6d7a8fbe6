"""What a row takes, from repeats of which each is disturbed by something else."""

import numpy as np
import pytest

from msd.profiling.timing import Timings, steady


def test_rows_are_told_apart_by_the_least_of_their_repeats_at_the_level_of_the_medians():
    rows = [[1.0, 1.0, 9.0], [2.0, 4.0, 4.0]]
    assert steady(rows).tolist() == pytest.approx([5 / 3, 10 / 3])


def test_noise_that_only_adds_does_not_change_what_rows_take_against_one_another():
    generator = np.random.default_rng(1)
    true_R = generator.uniform(1, 10, 200)
    disturbed = [(one * (1 + generator.exponential(0.3, 9))).tolist() for one in true_R]
    found_R = steady(disturbed)
    assert np.abs(found_R / found_R.sum() * true_R.sum() / true_R - 1).max() < 0.25
    medians_R = np.median(disturbed, axis=1)
    assert np.std(found_R / true_R) < 0.5 * np.std(medians_R / true_R)
    assert found_R.sum() == pytest.approx(medians_R.sum())


def test_rows_that_were_repeated_less_often_are_not_taken_for_dearer():
    assert steady([[3.0, 2.0, 1.0], [3.0, 2.0]]).tolist() == pytest.approx([2.5, 2.5])


def test_one_repeat_is_taken_as_it_is_and_no_row_takes_nothing():
    assert steady([[1.0], [2.0]]).tolist() == [1.0, 2.0]
    assert steady([]).tolist() == []
    assert steady([[0.0, 0.0]]).tolist() == [0.0]


def test_how_far_timings_differ_is_that_of_two_however_many_there_are():
    timings = Timings(worker_s=[[1.0, 2.0, 100.0], [1.0]])
    assert timings.spread() == pytest.approx(1 / 1.5)
