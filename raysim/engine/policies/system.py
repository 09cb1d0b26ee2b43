"""Clients' devices and connections: virtual time, availability and dropout as pure functions of seed and round.

Shapes: N clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.core.fields import NonNegative, Positive
from raysim.core.seeds import seed_for

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId
    from raysim.engine.policies.asynchronous import Flight

Floats = NDArray[np.float64]
BYTES_PER_MBIT = 1e6 / 8


class Distribution(Protocol):
    """A distribution from which a property of each client is drawn once."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> Floats:
        """Return one value per client, [N]. Adding clients does not change the values of earlier ones."""


@dataclass(frozen=True)
class Uniform:
    """Uniform distribution between `low` and `high`."""

    low: NonNegative
    """The smallest value."""
    high: NonNegative
    """The greatest value."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low: {self.low:g}, high: {self.high:g} given; give the smaller number as low")

    def draw(self, rng: np.random.Generator, num_clients: int) -> Floats:
        """See `Distribution`."""
        return rng.uniform(self.low, self.high, num_clients)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal distribution: a few clients have much greater values than the others, as in measurements of speed."""

    median: Positive
    """Median of the clients' values."""
    sigma: Positive = 1.0
    """Standard deviation of the natural logarithm; at 1, one client in six has more than 2.7 times the median."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> Floats:
        """See `Distribution`."""
        with np.errstate(over="ignore"):  # an infinite value is refused later, or means that an action takes no time
            return self.median * np.exp(self.sigma * rng.standard_normal(num_clients))


DISTRIBUTIONS: dict[str, type] = {"uniform": Uniform, "log_normal": LogNormal}


@dataclass(frozen=True, eq=False)
class Devices:
    """Properties of every client's device and connection, [N] each."""

    flops_per_s: Floats
    """Floating-point operations per second; infinite: computing takes no time."""
    up_mbit_per_s: Floats
    """Megabits (10^6) per second towards the server."""
    down_mbit_per_s: Floats
    """Megabits (10^6) per second from the server."""
    latency_s: Floats
    """Seconds of a client round in addition to computing and sending."""
    availability: Floats
    """Probability that a client can be selected in a round."""
    dropout: Floats
    """Probability that a client does not finish a round for which it was selected."""

    def seconds(self, k: ClientId, flops: float, up_bytes: int, down_bytes: int) -> float:
        """Return the virtual seconds of a client round."""
        up_s = up_bytes / (BYTES_PER_MBIT * self.up_mbit_per_s[k])
        down_s = down_bytes / (BYTES_PER_MBIT * self.down_mbit_per_s[k])
        return float(flops / self.flops_per_s[k] + up_s + down_s + self.latency_s[k])

    def available(self, seed: int, t: int, ids: Sequence[ClientId]) -> list[ClientId]:
        """Return those of `ids` that can be selected in round `t`."""
        drawn_N = _drawn(seed, "available", t, len(self.availability))
        holds_N = drawn_N < self.availability
        return [k for k in ids if holds_N[k]]

    def finishing(self, seed: int, t: int, ids: Sequence[ClientId]) -> list[ClientId]:
        """Return the selected clients that do not drop out of round `t`."""
        drawn_N = _drawn(seed, "dropout", t, len(self.dropout))
        return [k for k in ids if drawn_N[k] >= self.dropout[k]]


def _drawn(seed: int, purpose: str, t: int, num_clients: int) -> Floats:
    return np.random.default_rng(seed_for(seed, "system", purpose, t)).random(num_clients)


@dataclass(frozen=True)
class Timing:
    """When the participants of a round finished, in virtual seconds from its beginning, and when the round ended."""

    seconds: Mapping[ClientId, float]
    late: Collection[ClientId]  # participants that finished after the deadline, or after enough others had finished
    round_s: float
    dropped: int = 0  # number of clients of the cohort that dropped out or were late
    flight: Flight | None = None  # in an asynchronous run: the clients whose uploads arrive later
    staleness: float | None = None  # in an asynchronous run: mean staleness of the counted uploads, in rounds


def time_round(
    seconds: Mapping[ClientId, float], size: int, deadline_s: float | None = None, dropped: int = 0, failed: int = 0
) -> Timing:
    """Return the timing of a round. The first `size` clients that meet the deadline count; of equal ones, lower ids.

    seconds: of each participant that finished. dropped, failed: numbers of selected clients that never finish. The
    round ends when `size` clients have finished; with fewer, at the deadline if any is missing, else with the last.
    """
    order = sorted(seconds, key=lambda k: (seconds[k], k))
    counted = [k for k in order if deadline_s is None or seconds[k] <= deadline_s][:size]
    late = sorted(order[len(counted) :])
    if deadline_s is not None and len(counted) < size and dropped + failed + len(late) > 0:
        round_s = deadline_s
    else:
        round_s = seconds[counted[-1]] if counted else 0.0
    return Timing(seconds, late, round_s, dropped + len(late))
