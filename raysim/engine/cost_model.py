"""Estimates of local training time from measured client rounds. They affect speed, but never a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysim.core.algorithm import ClientId
from raysim.engine.plan import Plan
from raysim.engine.records import ClientEvaluation, ClientReport

NEWEST = 0.3
"""Weight of a new measurement in the running mean."""


@dataclass
class CostModel:
    """Seconds per sample of a client round, by architecture."""

    plan: Plan
    sample_s: dict[str, float] = field(default_factory=dict)

    def expected_s(self, t: int, k: ClientId) -> float:
        """Return the expected seconds of client k's part of round `t`.

        Before the first measurement, only ratios are meaningful. An architecture without a measurement gets the mean of
        the others.
        """
        known = self.sample_s.values()
        return self._samples(t, k) * self.sample_s.get(self.plan.arch(k), sum(known) / len(known) if known else 1.0)

    def learn(
        self, t: int, reports: Mapping[ClientId, ClientReport], evaluations: Mapping[ClientId, ClientEvaluation]
    ) -> None:
        """Update the means from client rounds of round `t` and from tests of their models."""
        for k, report in reports.items():
            seconds = report.train_s + (evaluations[k].seconds if k in evaluations else 0.0)
            sample_s = seconds / self._samples(t, k)
            arch = self.plan.arch(k)
            before = self.sample_s.get(arch, sample_s)
            self.sample_s[arch] = (1 - NEWEST) * before + NEWEST * sample_s

    def _samples(self, t: int, k: ClientId) -> int:
        """Return the number of samples that the network processes in a client round, plus one for fixed costs."""
        plan = self.plan
        return plan.trained_samples(t, k) + len(plan.val.of(k)) + len(plan.test.of(k)) + 1
