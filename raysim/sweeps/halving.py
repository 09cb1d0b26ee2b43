"""Successive halving: the rounds after which trials are compared, how many continue, and the order of trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise


@dataclass(frozen=True)
class Halving:
    """After each number of rounds but the last, only the best trials continue."""

    rounds: tuple[int, ...]  # ascending
    keep: Fraction = Fraction(1, 3)  # the share of the compared trials that continues; at least one trial does


def kept(trials: int, keep: Fraction) -> int:
    """The number of trials that continue, rounded up."""
    return math.ceil(trials * keep)


def sizes(trials: int, steps: int, keep: Fraction) -> list[int]:
    """The number of trials that run until each of the steps, if none fails."""
    counts = [trials]
    while len(counts) < steps:
        counts.append(kept(counts[-1], keep))
    return counts


def total_rounds(trials: int, steps: Sequence[int], keep: Fraction) -> int:
    """The rounds of all trials, each with one seed. steps: the rounds after which trials are compared, ascending."""
    new = [later - earlier for earlier, later in pairwise([0, *steps])]
    return sum(count * rounds for count, rounds in zip(sizes(trials, len(steps), keep), new, strict=True))


def ranked(scores: Mapping[int, float], smaller: bool = False) -> list[int]:
    """The trials with a finite score, from the best to the worst; of equal trials, the earlier one comes first.

    scores: trial -> score. smaller: whether smaller scores are better.
    """
    finite = [trial for trial, score in scores.items() if math.isfinite(score)]
    return sorted(finite, key=lambda trial: (scores[trial] if smaller else -scores[trial], trial))
