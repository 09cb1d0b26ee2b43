"""How long clients' turns take, learnt from those that were measured. No result depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysim.core.algorithm import ClientId
from raysim.engine.host import Measured, Turn
from raysim.engine.world import World

NEWEST = 0.3
"""Weight of a new measurement in the running mean."""


@dataclass
class Pace:
    """Seconds per sample of a turn, by architecture."""

    world: World
    sample_s: dict[str, float] = field(default_factory=dict)

    def expected_s(self, k: ClientId) -> float:
        """Expected seconds of a client's turn; only ratios mean something before the first was measured.

        An architecture that was not measured yet counts as the mean of those that were.
        """
        known = self.sample_s.values()
        return self._samples(k) * self.sample_s.get(self.world.arch(k), sum(known) / len(known) if known else 1.0)

    def learn(self, turns: Mapping[ClientId, Turn], measured: Mapping[ClientId, Measured]) -> None:
        """Take in how long turns took, with the tests of those clients."""
        for k, turn in turns.items():
            sample_s = (turn.train_s + (measured[k].seconds if k in measured else 0.0)) / self._samples(k)
            arch = self.world.arch(k)
            before = self.sample_s.get(arch, sample_s)
            self.sample_s[arch] = (1 - NEWEST) * before + NEWEST * sample_s

    def _samples(self, k: ClientId) -> int:
        """Samples that a client's turn passes through its network, and one for what each turn costs anyway."""
        world = self.world
        return world.local.epochs * len(world.train.of(k)) + len(world.val.of(k)) + len(world.test.of(k)) + 1
