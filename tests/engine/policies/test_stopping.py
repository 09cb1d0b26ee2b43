"""When a run ends early: numbers checked by hand, without a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from raysim.engine.policies.stopping import StoppingRule, Watched


def ends(rule: StoppingRule, values: Sequence[float], every: int = 1) -> int | None:
    """The round after which a metric with these values, from round 1 on, ends the run."""
    watched: Watched | None = None
    for i, value in enumerate(values, start=1):
        watched = rule.watch(watched, i * every, value)
        if rule.reason(watched):
            return i * every
    return None


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (StoppingRule("accuracy/val", patience=2), [0.5, 0.6, 0.6, 0.6], 4),  # an equal value is no improvement
        (StoppingRule("accuracy/val", patience=2), [0.5, 0.4, 0.6, 0.5, 0.5], 5),
        (StoppingRule("accuracy/val", patience=2, min_rounds=6), [0.5, 0.4, 0.4, 0.4, 0.4, 0.4], 6),
        (StoppingRule("accuracy/val", target=0.7), [0.5, 0.7, 0.1], 2),
        (StoppingRule("accuracy/val", target=0.7, min_rounds=3), [0.7, 0.6, 0.6, 0.8], 4),
        (StoppingRule("accuracy/val", patience=9, target=0.9), [0.5] * 9, None),
        (StoppingRule("loss/test", patience=2), [2.0, 1.0, 1.5, 1.5], 4),
        (StoppingRule("loss/test", target=0.5), [2.0, 0.6, 0.5], 3),
        (StoppingRule("loss/test", patience=2), [math.nan, 3.0, math.nan, math.nan], 4),
        (StoppingRule("accuracy/val", target=0.1), [math.nan, math.nan], None),
    ],
)
def test_the_round_in_which_a_run_ends(rule: StoppingRule, values: list[float], expected: int | None) -> None:
    assert ends(rule, values) == expected


def test_patience_counts_rounds_and_not_tests() -> None:
    assert ends(StoppingRule("accuracy/val", patience=4), [0.5, 0.4, 0.4, 0.4], every=2) == 6


@pytest.mark.parametrize(
    ("had", "has", "expected"),
    [
        ({"patience": 2}, {"patience": 3}, True),
        ({"patience": 2}, {"patience": 1}, False),
        ({"patience": 2}, {"patience": 2, "target": 0.9}, False),  # a target that was not there before
        ({"patience": 2, "target": 0.8}, {"patience": 2, "target": 0.9}, True),
        ({"patience": 2, "target": 0.8}, {"patience": 2}, True),
        ({"patience": 2, "min_rounds": 5}, {"patience": 2, "min_rounds": 4}, False),
        ({"target": 0.8}, {"target": 0.8, "patience": 99}, False),
    ],
)
def test_a_resumed_run_may_only_end_later(had: dict[str, float], has: dict[str, float], expected: bool) -> None:
    assert StoppingRule("accuracy/val", **has).relaxes(StoppingRule("accuracy/val", **had)) is expected  # type: ignore[arg-type]
    assert not StoppingRule("accuracy/all", **has).relaxes(StoppingRule("accuracy/val", **had))  # type: ignore[arg-type]
