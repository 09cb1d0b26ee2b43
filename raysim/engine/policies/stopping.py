"""Early stopping: whether a run ends, as a pure function of one metric in the tested rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass


def falls(metric: str) -> bool:
    """Return whether lower values of a metric are better, as for a loss; for other metrics, higher values are."""
    return metric.startswith("loss/")


@dataclass(frozen=True)
class Watched:
    """The last and the best value so far of the metric that may end the run."""

    round: int  # the round of `value`
    value: float
    best_round: int  # the first round with the value `best`
    best: float


@dataclass(frozen=True)
class StoppingRule:
    """End the run when a metric reaches a target, or has not improved for a number of rounds."""

    metric: str  # `falls` returns whether lower values are better
    patience: int | None = None
    """The run ends after this number of rounds without an improvement; None: never."""
    target: float | None = None
    """The run ends when the metric reaches this value; None: never."""
    min_rounds: int = 1
    """The run does not end before this round."""

    def watch(self, before: Watched | None, t: int, value: float) -> Watched:
        """Return the record after round `t`. before: the previous record; value: the metric in round `t`."""
        if before is None or self._improves(value, before.best):
            return Watched(t, value, t, value)
        return Watched(t, value, before.best_round, before.best)

    def reason(self, watched: Watched) -> str:
        """Return the reason why the run ends after the round of `watched`; empty if it continues."""
        t = watched.round
        if t < self.min_rounds:
            return ""
        if self.target is not None and not self._improves(self.target, watched.value):
            return f"{self.metric} reached {watched.value:.4g} in round {t} (target {self.target:g})"
        if self.patience is not None and t - watched.best_round >= self.patience:
            return f"{self.metric} has not improved since round {watched.best_round} (best: {watched.best:.4g})"
        return ""

    def relaxes(self, other: StoppingRule) -> bool:
        """Return whether this rule never ends a run earlier than `other`, because no condition of it is stricter."""
        return (
            self.metric == other.metric
            and self.min_rounds >= other.min_rounds
            and (self.patience is None or (other.patience is not None and self.patience >= other.patience))
            and (
                self.target is None
                or (other.target is not None and not self._improves(other.target, self.target))
            )
        )  # fmt: skip

    def _improves(self, value: float, on: float) -> bool:
        """Return whether `value` is better than `on`. NaN is worse than any number."""
        if math.isnan(on):
            return not math.isnan(value)
        return value < on if falls(self.metric) else value > on
