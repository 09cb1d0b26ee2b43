"""The cohort of a round: a pure function of the run's seed and the round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from raysim.core.seeds import seed_for

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId


def cohort_size(participation: float, num_clients: int) -> int:
    """K = floor(participation * N), forgiving the last digit: 0.29 of 100 is 29."""
    return math.floor(participation * num_clients + 1e-9)


def cohort(seed: int, t: int, eligible: Sequence[ClientId], size: int) -> tuple[ClientId, ...]:
    """`size` of the eligible clients, uniformly without replacement, in id order; all, if there are fewer."""
    if size >= len(eligible):
        return tuple(sorted(eligible))
    rng = np.random.default_rng(seed_for(seed, "cohort", t))
    return tuple(sorted(int(k) for k in rng.choice(np.asarray(eligible), size=size, replace=False)))
