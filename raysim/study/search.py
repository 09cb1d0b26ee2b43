"""Searches: which trials run next, and until which round. This depends only on seeds and scores.

A search yields batches of trials and receives the scores of each batch, so it is repeated from the run folders after
any interruption. A score is NaN if the trial failed or diverged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from raysim.core.seeds import seed_for
from raysim.study.cells import written
from raysim.study.space import Domain, Space, Values

Point = Mapping[str, Any]
"""Key -> value, for the keys to tune."""

Batch = tuple[Mapping[int, Point], int]
"""Trial number -> values of the trials to run, and the round until which they run before they are compared."""

Search = Generator[Batch, Mapping[int, float], None]
"""A generator of batches, to which the score of each trial of the last batch is sent."""


def halving(points: Sequence[Point], steps: Sequence[int], keep: Fraction, smaller: bool) -> Search:
    """Compare trials after each of these rounds, in ascending order, and continue only the best of them.

    All trials of a step end before any continues, so the result does not depend on which trial is faster. smaller:
    whether smaller scores are better.
    """
    numbers = list(range(len(points)))
    for until in steps:
        scores = yield {number: points[number] for number in numbers}, until
        numbers = sorted(ranked(scores, smaller)[: math.ceil(len(scores) * keep)])
        if not numbers:
            return


def planned(trials: int, steps: Sequence[int], keep: Fraction) -> int:
    """Return the total number of rounds of all trials in `halving`, if no trial fails."""
    rounds = 0
    for earlier, later in pairwise([0, *steps]):
        rounds += trials * (later - earlier)
        trials = math.ceil(trials * keep)
    return rounds


def tpe(space: Space, trials: int, until: int, seed: int, method: str, smaller: bool) -> Search:
    """Let Optuna's tree-structured Parzen estimator suggest each trial's values from the scores of earlier trials.

    Each trial has a sampler with a seed of its own, so a suggestion depends only on the seed, the method, the trial's
    number, the earlier scores, and the release of Optuna.
    """
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)
    study = optuna.create_study(direction="minimize" if smaller else "maximize")
    distributions = {key: distribution(one) for key, one in space.items()}
    for number in range(trials):
        study.sampler = optuna.samplers.TPESampler(seed=seed_for(seed, "tune", method, number) % 2**32)
        asked = study.ask(distributions)
        scores = yield {number: {key: _value(one, asked.params[key]) for key, one in space.items()}}, until
        worst = math.inf if smaller else -math.inf
        # A failed trial is reported as a very bad one. Optuna ignores trials with the state "failed", and would suggest
        # similar values again.
        study.tell(asked, scores[number] if math.isfinite(scores[number]) else worst)


def ranked(scores: Mapping[int, float], smaller: bool) -> list[int]:
    """Return the trials with a finite score, from best to worst; of equal trials, the earlier one is better.

    scores: trial -> score. smaller: whether smaller scores are better.
    """
    finite = [trial for trial, score in scores.items() if math.isfinite(score)]
    return sorted(finite, key=lambda trial: (scores[trial] if smaller else -scores[trial], trial))


def distribution(domain: Domain) -> Any:
    """Return Optuna's description of a domain."""
    import optuna

    if isinstance(domain, Values):
        return optuna.distributions.CategoricalDistribution([choice(value) for value in domain.values])
    if domain.kind == "integer":
        return optuna.distributions.IntDistribution(int(domain.low), int(domain.high))
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.kind == "log")


def choice(value: Any) -> Any:
    """Return a value of a list for Optuna. Lists and mappings become YAML in one line, because Optuna refuses them."""
    return value if value is None or isinstance(value, bool | int | float | str) else written(value)


def _value(domain: Domain, suggested: Any) -> Any:
    if isinstance(domain, Values):
        return next(value for value in domain.values if choice(value) == suggested)
    return int(suggested) if domain.kind == "integer" else domain.rounded(suggested)
