"""Trials of a tuning: the values, rounds and score of each, and whether it was chosen, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysim.report.units import plural


@dataclass(frozen=True)
class TrialCard:
    """A trial of a tuned method."""

    method: str
    number: int
    values: Mapping[str, str]  # key -> value, YAML in one line
    cells: Sequence[str]  # names of its folders, one per seed
    rounds: int  # after which it was last compared
    score: float | None  # then, its mean over the seeds; None: it is not done, or it failed or diverged
    failed: bool  # whether it failed or diverged
    chosen: bool


@dataclass(frozen=True)
class TrialsCard:
    """The trials of a sweep."""

    select: str  # the metric that compares them
    seeds: Sequence[int]
    trials: Sequence[TrialCard]

    def rounds_of(self, cell: str) -> int | None:
        """The rounds that were asked of a trial's cell; None if it belongs to no trial."""
        return next((trial.rounds for trial in self.trials if cell in trial.cells), None)

    @property
    def rows(self) -> list[list[str]]:
        """The table: a title row, then a row per trial."""
        keys = list(dict.fromkeys(key for trial in self.trials for key in trial.values))
        table = [["method", "trial", *keys, "rounds", self.select, "chosen"]]
        for trial in self.trials:
            values = [trial.values.get(key, "-") for key in keys]
            chosen = "chosen" if trial.chosen else ""
            table.append([trial.method, str(trial.number), *values, str(trial.rounds), self._score(trial), chosen])
        return table

    @property
    def legend(self) -> str:
        """The explanation of the table."""
        in_per_cent = " in %" if self._factor > 1 else ""
        over = f"mean over {plural(len(self.seeds), 'seed')}"
        text = f"{self.select}{in_per_cent}, {over}, after the number of rounds in the column `rounds`"
        if len({trial.rounds for trial in self.trials}) > 1:
            text += "; successive halving ended some trials after fewer rounds and compared only trials of equal length"
        if open_ := sum(trial.score is None and not trial.failed for trial in self.trials):
            text += f"; {plural(open_, 'trial')} had not finished when the sweep last compared trials"
        return f"{text}."

    @property
    def _factor(self) -> float:
        return 100.0 if self.select.startswith("accuracy/") else 1.0

    def _score(self, trial: TrialCard) -> str:
        if trial.failed:
            return "failed or diverged"
        return "-" if trial.score is None else f"{self._factor * trial.score:.4g}"
