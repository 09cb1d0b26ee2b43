"""Optuna's tree-structured Parzen estimator: each trial is suggested from the scores of all earlier ones, in order."""

from __future__ import annotations

import logging
import math
from typing import Any

import optuna

from raysim.core.seeds import seed_for
from raysim.engine.policies.stopping import falls
from raysim.sweeps.space import Domain, Values
from raysim.sweeps.tuning import Candidate, HasEnded, Standing, Trial, Tuning

optuna.logging.set_verbosity(logging.WARNING)


def standing_of(tuning: Tuning, candidate: Candidate, ended: HasEnded) -> Standing:
    """Return the progress of a candidate: repeat the search from the run folders, up to the first trial not done.

    Suggestions depend on the seed, the space, the scores so far and the release of Optuna, so the repetition suggests
    the same trials with the same release.
    """
    settings = tuning.settings
    seed = seed_for(settings.seed, "tune", candidate.name) % 2**32
    sampler = optuna.samplers.TPESampler(seed=seed)
    direction = "minimize" if falls(settings.select) else "maximize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    distributions = {key: _distribution(one) for key, one in candidate.space.items()}
    trials: dict[int, Trial] = {}
    for number in range(candidate.trials):
        asked = study.ask(distributions)
        values = {key: _value(one, asked.params[key]) for key, one in candidate.space.items()}
        trial = trials[number] = tuning.trial(candidate, number, values, candidate.steps[0], ended)
        if trial.score is None:
            return Standing(candidate, tuple(trials.values()), trial.states)
        worst = math.inf if direction == "minimize" else -math.inf
        # Optuna ignores a trial with the state "failed", and would suggest values near it again and again.
        study.tell(asked, trial.score if math.isfinite(trial.score) else worst)
    best = tuning.ranked(trials)
    return Standing(candidate, tuple(trials.values()), chosen=trials[best[0]] if best else None)


def _distribution(domain: Domain) -> Any:
    """Optuna's description of a domain; a list is described by its indices, because its values may be lists."""
    if isinstance(domain, Values):
        return optuna.distributions.CategoricalDistribution(range(len(domain.values)))
    if domain.kind == "integer":
        return optuna.distributions.IntDistribution(int(domain.low), int(domain.high))
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.kind == "log")


def _value(domain: Domain, suggested: Any) -> Any:
    if isinstance(domain, Values):
        return domain.values[suggested]
    return int(suggested) if domain.kind == "integer" else domain.rounded(suggested)
