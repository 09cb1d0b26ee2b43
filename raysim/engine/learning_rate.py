"""The learning rate over the rounds: a pure function of the round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from raysim.common.errors import RunError
from raysim.core.fields import Count, Fraction, NonNegativeInt, Range
from raysim.plugins.calling import failing

Factor = Annotated[float, Range(gt=0, le=1)]


class RateSchedule(Protocol):
    """A named schedule: a frozen dataclass whose fields are the keys of `training.schedule`."""

    def factor(self, t: int, num_rounds: int) -> float:
        """Return the factor of `training.lr` in round `t`, counted from 1; greater than 0."""


@dataclass(frozen=True)
class WarmsUp(ABC):
    """A schedule that may follow a warm-up, during which the learning rate grows linearly to `training.lr`."""

    warmup: NonNegativeInt = field(default=0, kw_only=True)
    """Number of rounds in which the learning rate grows linearly, from `training.lr / warmup` in round 1 to
    `training.lr`. The schedule then starts, over the remaining rounds."""

    def factor(self, t: int, num_rounds: int) -> float:
        """See `RateSchedule`."""
        return t / self.warmup if t <= self.warmup else self.after(t - self.warmup, num_rounds - self.warmup)

    @abstractmethod
    def after(self, t: int, num_rounds: int) -> float:
        """Return the factor in round `t`, counted from 1 after the warm-up. num_rounds: rounds after the warm-up."""


@dataclass(frozen=True)
class Constant(WarmsUp):
    """The same learning rate in every round."""

    def after(self, t: int, num_rounds: int) -> float:
        """See `WarmsUp`."""
        return 1.0


@dataclass(frozen=True)
class Step(WarmsUp):
    """The learning rate is multiplied by `by` after every `every` rounds; `every: 1` gives exponential decay."""

    every: Count
    """Number of rounds between two steps."""
    by: Factor = 0.1
    """Factor by which each step multiplies the learning rate."""

    def after(self, t: int, num_rounds: int) -> float:
        """See `WarmsUp`."""
        return self.by ** ((t - 1) // self.every)


@dataclass(frozen=True)
class Cosine(WarmsUp):
    """The rate falls along half a cosine from `training.lr` in round 1 towards `floor * training.lr` after the last.

    Loshchilov, Hutter. ICLR 2017, Eq. 5, without restarts.
    """

    floor: Fraction = 0.0
    """Factor of `training.lr` that the schedule approaches after the last round."""

    def after(self, t: int, num_rounds: int) -> float:
        """See `WarmsUp`."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * (t - 1) / num_rounds)) / 2


def factor_of(schedule: RateSchedule, t: int, num_rounds: int) -> float:
    """Return `schedule.factor` as a `float`. Raises `RunError` if it fails or does not return a number above 0."""
    name = f"{type(schedule).__name__}.factor"
    with failing(f"{name} fails"):
        factor = float(schedule.factor(t, num_rounds))
    if not 0 < factor < math.inf:
        raise RunError(
            f"{name}({t}, {num_rounds}) gives {factor} as the factor of the learning rate in round {t} of "
            f"{num_rounds}; change the schedule so that every factor is finite and greater than 0"
        )
    return factor


SCHEDULES: dict[str, type] = {"constant": Constant, "step": Step, "cosine": Cosine}
