"""The record of a sweep's trials in `sweep.json`, which `raysim compare` reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raysim.comparison.sweep_card import TrialCard, TrialsCard
from raysim.sweeps.cells import written
from raysim.sweeps.tuning import Standing, Tuning


def trials_card(tuning: Tuning, standings: Sequence[Standing]) -> TrialsCard:
    """The trials that are known, in the order of their methods."""
    settings = tuning.settings
    trials = [
        TrialCard(
            standing.candidate.name,
            trial.number,
            {key: written(value) for key, value in trial.values.items()},
            [state.cell.folder_name for state in trial.states],
            trial.states[0].cell.rounds,
            None if trial.score is None or math.isnan(trial.score) else trial.score,
            trial.score is not None and math.isnan(trial.score),
            trial is standing.chosen,
        )
        for standing in standings
        for trial in standing.trials
    ]
    return TrialsCard(settings.select, tuning.seeds, trials)
