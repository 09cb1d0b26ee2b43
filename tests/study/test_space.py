"""The pure part of tuning: domains, draws, grids, edges, and the order and number of trials that go on."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest

from raysim.common.errors import ScenarioError
from raysim.study.search import halving, planned, ranked
from raysim.study.space import ValueRange, Values, domain, draws, number_of_points

SPACE = {"a": Values((1, 2, 3)), "b": ValueRange("log", 0.001, 1.0), "c": ValueRange("integer", 2, 4)}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([0.1, "x", [1]], Values((0.1, "x", [1]))),
        ({"log": [0.001, 1]}, ValueRange("log", 0.001, 1)),
        ({"linear": [-1, 1.5]}, ValueRange("linear", -1, 1.5)),
        ({"integer": [0, 3]}, ValueRange("integer", 0, 3)),
    ],
)
def test_domains(raw: Any, expected: Any) -> None:
    assert domain(raw, "key", "file") == expected


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {"log": [0, 1]},
        {"log": [1, 0.1]},
        {"integer": [1, 2.5]},
        {"lag": [1, 2]},
    ],
)
def test_wrong_domains(raw: Any) -> None:
    with pytest.raises(ScenarioError, match=r"^file: tune.space.x: .*given; give .*{log: "):
        domain(raw, "tune.space.x", "file")


def test_a_draw_depends_on_seed_key_and_trial_alone() -> None:
    few, more = draws(SPACE, 1, 4), draws(SPACE, 1, 9)
    assert more[:4] == few
    assert draws(SPACE, 2, 4) != few
    # A method with another key tries the same numbers of the shared range.
    other = draws({"b": SPACE["b"], "mu": ValueRange("log", 0.001, 1)}, 1, 4)
    assert [one["b"] for one in other] == [one["b"] for one in few]
    assert [one["mu"] for one in other] != [one["b"] for one in few]
    # These numbers are those of every machine and version of Python: a sweep that is resumed must draw them again.
    assert few[0] == {"a": 2, "b": 0.03707, "c": 3}


def test_draws_are_different_points_of_the_space() -> None:
    many = draws(SPACE, 1, 300)
    assert {one["a"] for one in many} == {1, 2, 3} and {one["c"] for one in many} == {2, 3, 4}
    rates = [one["b"] for one in many]
    assert all(0.001 <= rate <= 1 for rate in rates) and all(float(f"{rate:.4g}") == rate for rate in rates)
    thirds = [sum(low <= rate < 10 * low for rate in rates) for low in (0.001, 0.01, 0.1)]
    assert all(70 < count < 130 for count in thirds)  # uniform in the logarithm
    finite = {"a": Values(("x", "y")), "c": ValueRange("integer", 0, 1)}
    assert number_of_points(finite) == 4 and number_of_points(SPACE) == math.inf
    drawn = draws(finite, 1, 4)
    assert sorted(map(str, drawn)) == sorted(str({"a": a, "c": c}) for a in "xy" for c in (0, 1))


@pytest.mark.parametrize("seed", range(1, 6))
def test_few_draws_cover_every_range(seed: int) -> None:
    """With independent draws, all four values of a range are in one half of it with a probability of 1/8."""
    space = {"a": ValueRange("log", 0.02, 0.3), "b": ValueRange("linear", -1, 1), "c": Values(tuple("wxyz"))}
    space |= {"d": ValueRange("integer", 1, 8), "e": Values((1, 2, 3))}
    few = draws(space, seed, 4)
    logarithms = [4 * math.log(one["a"] / 0.02) / math.log(15) for one in few]
    assert sorted(map(int, logarithms)) == [0, 1, 2, 3]
    assert sorted(int(2 * (one["b"] + 1)) for one in few) == [0, 1, 2, 3]
    assert sorted(one["c"] for one in few) == ["w", "x", "y", "z"] and {one["e"] for one in few} == {1, 2, 3}
    assert [sum(one["d"] in (2 * i + 1, 2 * i + 2) for one in few) for i in range(4)] == [1, 1, 1, 1]
    more = draws(space, seed, 8)
    assert sorted(int(4 * (one["b"] + 1)) for one in more) == list(range(8))
    assert sorted(one["d"] for one in more) == list(range(1, 9))


@pytest.mark.parametrize("count", [3, 16])
def test_no_two_draws_are_nearly_equal(count: int) -> None:
    """Of N draws, two are at least half of 1 / N apart, also where N is no power of two."""
    for seed in range(1, 31):
        drawn = sorted(one["a"] for one in draws({"a": ValueRange("linear", 0, 1)}, seed, count))
        assert min(b - a for a, b in itertools.pairwise(drawn)) > 0.5 / count - 1e-3


def test_the_order_of_the_parts_differs_by_key() -> None:
    """Otherwise a high value of one key would always come with a high value of the other."""
    space = {key: ValueRange("linear", 0, 1) for key in ("a", "b")}
    points = [one for seed in range(1, 101) for one in draws(space, seed, 2)]
    together = sum((one["a"] < 0.5) == (one["b"] < 0.5) for one in points)
    assert 60 < together < 140


@pytest.mark.parametrize(
    ("of", "value", "edge"),
    [
        (Values((0.1, 0.01, 1)), 0.01, "lower"),
        (Values((0.1, 0.01, 1)), 1, "upper"),
        (Values((0.1, 0.01, 1)), 0.1, ""),
        (Values((0.1, 1)), 0.1, ""),  # each value of two lies on an edge
        (Values(("a", "b")), "a", ""),
        (ValueRange("log", 0.001, 1.0), 0.0014, "lower"),
        (ValueRange("log", 0.001, 1.0), 0.0016, ""),
        (ValueRange("log", 0.001, 1.0), 0.72, "upper"),
        (ValueRange("linear", 0.0, 1.0), 0.04, "lower"),
        (ValueRange("integer", 1, 5), 5, "upper"),
    ],
)
def test_edges(of: Values | ValueRange, value: Any, edge: str) -> None:
    assert of.edge(value) == edge


def test_a_third_goes_on_rounded_up() -> None:
    third = Fraction(1, 3)
    assert planned(16, [1, 2, 3], third) == 16 + 6 + 2
    # 16 trials of 10 rounds, 6 of 20 more, 2 of 70 more: a quarter of 16 trials of 100 rounds.
    assert planned(16, [10, 30, 100], third) == 160 + 120 + 140
    assert planned(16, [100], Fraction(1)) == 1600


def test_the_best_trials_continue_in_the_order_of_their_numbers() -> None:
    points = [{"lr": rate} for rate in (0.1, 0.2, 0.3, 0.4)]
    search = halving(points, [1, 3], Fraction(1, 2), smaller=True)
    assert next(search) == (dict(enumerate(points)), 1)
    assert search.send({0: math.nan, 1: 0.4, 2: 0.9, 3: 0.3}) == ({1: points[1], 3: points[3]}, 3)
    failing = halving(points, [1, 3], Fraction(1, 2), smaller=True)
    next(failing)
    with pytest.raises(StopIteration):
        failing.send(dict.fromkeys(range(4), math.nan))


def test_equal_scores_keep_the_order_and_scores_that_are_not_finite_are_left_out() -> None:
    scores = {0: 0.5, 1: math.nan, 2: 0.9, 3: 0.5, 4: math.inf, 5: 0.9}
    assert ranked(scores, smaller=False) == [2, 5, 0, 3]
    assert ranked(scores, smaller=True) == [0, 3, 2, 5]
    assert ranked({0: math.nan}, smaller=True) == []
