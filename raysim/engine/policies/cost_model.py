"""How long clients' turns take, learnt from those that were measured. No result depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysim.core.algorithm import ClientId
from raysim.engine.records import ClientEvaluation, ClientReport
from raysim.engine.spec import RunSpec

NEWEST = 0.3
"""Weight of a new measurement in the running mean."""


@dataclass
class CostModel:
    """Seconds per sample of a turn, by architecture."""

    spec: RunSpec
    sample_s: dict[str, float] = field(default_factory=dict)

    def expected_s(self, k: ClientId) -> float:
        """Expected seconds of a client's turn; only ratios mean something before the first was measured.

        An architecture that was not measured yet counts as the mean of those that were.
        """
        known = self.sample_s.values()
        return self._samples(k) * self.sample_s.get(self.spec.arch(k), sum(known) / len(known) if known else 1.0)

    def learn(
        self, client_reports: Mapping[ClientId, ClientReport], evaluations: Mapping[ClientId, ClientEvaluation]
    ) -> None:
        """Take in how long turns took, with the tests of those clients."""
        for k, client_report in client_reports.items():
            sample_s = (client_report.train_s + (evaluations[k].seconds if k in evaluations else 0.0)) / self._samples(
                k
            )
            arch = self.spec.arch(k)
            before = self.sample_s.get(arch, sample_s)
            self.sample_s[arch] = (1 - NEWEST) * before + NEWEST * sample_s

    def _samples(self, k: ClientId) -> int:
        """Samples that a client's turn passes through its network, and one for what each turn costs anyway."""
        spec = self.spec
        return spec.local.epochs * len(spec.train.of(k)) + len(spec.val.of(k)) + len(spec.test.of(k)) + 1
