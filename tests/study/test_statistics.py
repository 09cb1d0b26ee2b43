"""The statistics of a comparison, by hand and against SciPy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysim.study.statistics import (
    estimate,
    holm,
    interquartile_mean,
    paired_difference,
    paired_p_value,
    probability_of_improvement,
)

NUMBERS = st.lists(st.floats(-100, 100), min_size=3, max_size=12)


def test_an_interval_by_hand() -> None:
    # Mean 2, s = 1, standard error 1 / sqrt(3); t(0.975, 2) = 4.302653.
    found = estimate([1.0, 2.0, 3.0])
    assert (found.n, found.mean) == (3, 2.0)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    assert found.std == pytest.approx(1.0)
    assert (found.spread("interval"), found.spread("std")) == (found.half_width, found.std)


@given(NUMBERS)
def test_an_interval_is_scipys(values: list[float]) -> None:
    found = estimate(values)
    error = stats.sem(values)
    if error > 0:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=error)
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.7]])
def test_below_three_seeds_there_is_no_interval(values: list[float]) -> None:
    found = estimate(values)
    assert (found.n, found.low, found.high, found.half_width) == (len(values), None, None, None)
    # 0.5 and 0.7 are 0.1 away from their mean: sqrt((0.01 + 0.01) / (2 - 1)).
    assert found.std == (pytest.approx(math.sqrt(0.02)) if len(values) == 2 else None)


def test_a_paired_difference_uses_what_both_have() -> None:
    ours, theirs = {1: 0.5, 2: 0.7, 3: 0.6, 4: 9.0}, {1: 0.4, 2: 0.5, 3: 0.5, 5: -9.0}
    found = paired_difference(ours, theirs)
    assert found is not None and found.n == 3
    assert found.mean == pytest.approx(0.4 / 3)  # 0.1, 0.2, 0.1
    low, high = stats.ttest_rel([0.5, 0.7, 0.6], [0.4, 0.5, 0.5]).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert paired_difference({1: 0.5}, {2: 0.5}) is None


def test_a_quarter_is_cut_off_at_both_ends() -> None:
    # Of 2, 3, 4 and 5. The other values are not symmetric, so that cutting off fewer would change the mean.
    assert interquartile_mean([0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 60.0, 100.0]) == 3.5


def test_the_probability_of_improvement_by_hand() -> None:
    # Of four pairs: 3 > 1, 3 > 2, 1 = 1 counts half, 1 < 2.
    assert probability_of_improvement([([3.0, 1.0], [1.0, 2.0])]) == 2.5 / 4
    assert probability_of_improvement([([3.0, 1.0], [1.0, 2.0]), ([1.0], [0.0])]) == (2.5 / 4 + 1) / 2
    assert probability_of_improvement([([1.0], [1.0])]) == 0.5


def test_the_probability_of_improvement_with_unequal_numbers_of_seeds() -> None:
    # 3 > 1.5 and 2 > 1.5, 1 < 1.5: two of three pairs.
    assert probability_of_improvement([([3.0, 1.0, 2.0], [1.5])]) == pytest.approx(2 / 3)


def test_p_values_are_those_of_scipy() -> None:
    ours, theirs = [0.5, 0.7, 0.6, 0.9], [0.4, 0.5, 0.5, 0.95]
    found = paired_p_value(dict(enumerate(ours)), {**dict(enumerate(theirs)), 9: 0.1})
    assert found == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert paired_p_value({1: 0.5, 2: 0.5}, {1: 0.1, 2: 0.2}) is None
    same = {1: 0.5, 2: 0.25, 3: 0.75}
    assert paired_p_value(same, same) == 1
    assert paired_p_value(same, {seed: value - 0.25 for seed, value in same.items()}) == 0


def test_holm_by_hand() -> None:
    """0.01 of four counts four times, 0.02 three times, 0.03 twice, though no less than 0.06; 0.9 once."""
    found = holm({"a": 0.03, "b": 0.01, "c": 0.9, "d": 0.02})
    assert found == {"b": pytest.approx(0.04), "d": pytest.approx(0.06), "a": pytest.approx(0.06), "c": 0.9}
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
