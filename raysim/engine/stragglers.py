"""Clients that do not finish all local epochs of a round: a pure function of seed, round and client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysim.core.seeds import seed_for


@dataclass(frozen=True)
class StragglerDraws:
    """Each participant is a straggler with probability `share`, drawn anew in each round.

    A straggler trains for a number of epochs that is drawn uniformly from 1 to its epochs.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020, Section
    5.2.
    """

    share: float
    seed: int

    def epochs(self, epochs: int, t: int, k: int) -> int:
        """Return the epochs of client k in round `t`. epochs: those of a client that is no straggler."""
        rng = np.random.default_rng(seed_for(self.seed, "straggler", t, k))
        return int(rng.integers(1, epochs, endpoint=True)) if rng.random() < self.share else epochs

    def mean(self, epochs: int) -> float:
        """Return the expected epochs of a client in a round. epochs: those of a client that is no straggler."""
        return (1 - self.share) * epochs + self.share * (1 + epochs) / 2
