"""Statistics of a comparison: pure functions of one number per seed.

Sources: Student's t interval; for the paired difference, the t interval of the differences; the interquartile mean
and the probability of improvement follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", NeurIPS 2021, section 4.3 (https://arxiv.org/abs/2108.13264).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from scipy import special

MIN_SEEDS = 3
"""Minimum number of values for an interval: with two, the t distribution has one degree of freedom and is too wide."""

CONFIDENCE = 0.95

SIGNIFICANT = 0.05
"""Corrected p-values below this level are significant."""

Spread = Literal["interval", "std"]
"""The number after ±: half of the confidence interval, or the standard deviation over seeds."""

Name = TypeVar("Name")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with its 95 % confidence interval if there are at least `MIN_SEEDS` values.

    std: the standard deviation over seeds, with n - 1 in the denominator; None for a single value.
    """

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    std: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def spread(self, what: Spread) -> float | None:
        """The number after ±; None with too few values."""
        return self.std if what == "std" else self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean with its two-sided interval mean ± t(n-1) · s / sqrt(n), where s is divided by n - 1."""
    n, mean = len(values), math.fsum(values) / len(values)
    std = float(np.std(values, ddof=1)) if n > 1 else None
    if std is None or n < MIN_SEEDS:
        return Estimate(n, mean, std=std)
    half = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * (std / math.sqrt(n))
    return Estimate(n, mean, mean - half, mean + half, std)


def paired_difference(values: Mapping[object, float], baseline: Mapping[object, float]) -> Estimate | None:
    """Return the estimate of value - baseline over the keys (seed and partition) of both; None if they share none."""
    differences = _differences(values, baseline)
    return estimate(differences) if differences else None


def paired_p_value(values: Mapping[object, float], baseline: Mapping[object, float]) -> float | None:
    """The two-sided p-value of the paired t-test over the keys that both have (`scipy.stats.ttest_rel`).

    None if they share fewer than three keys.
    """
    differences = _differences(values, baseline)
    n = len(differences)
    if n < MIN_SEEDS:
        return None
    mean, spread = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if spread == 0:
        return 0.0 if mean else 1.0
    return 2 * float(special.stdtr(n - 1, -abs(mean) / spread * math.sqrt(n)))


def _differences(values: Mapping[object, float], baseline: Mapping[object, float]) -> list[float]:
    """The differences value - baseline for the keys that both have."""
    return [value - baseline[key] for key, value in values.items() if key in baseline]


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Correct p-values for multiple tests by Holm's step-down procedure (S. Holm, Scand. J. Statist., 1979).

    Of m p-values in ascending order, the i-th, from 0, is multiplied by m - i, and raised to the corrected value
    before it if it is smaller. Rejecting those below alpha gives a family-wise error rate of at most alpha.
    """
    corrected: dict[Name, float] = {}
    least = 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(p_values) - i) * p))
        corrected[name] = least
    return corrected


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half of the values (`scipy.stats.trim_mean` with a quarter cut off at both ends)."""
    from scipy import stats  # importing it takes a second

    return float(stats.trim_mean(values, 0.25))


def probability_of_improvement(tasks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The probability that a random run of the first variant is better than one of the second, averaged over tasks.

    tasks: for each task, the values of the first and of the second variant, n and m of them. The probability is the
    Mann-Whitney statistic U / (n · m), in which a tie counts one half.
    """
    from scipy import stats

    shares = [
        float(stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic) / (len(ours) * len(theirs))
        if len({*ours, *theirs}) > 1
        else 0.5
        for ours, theirs in tasks
    ]
    return math.fsum(shares) / len(shares)
