"""Selection of a round's cohort: a pure function of the run's seed, the round, and facts known before the round."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import numpy as np

from raysim.common.errors import RunError
from raysim.common.text import quoted
from raysim.core.fields import Range
from raysim.core.seeds import seed_for
from raysim.plugins.calling import failing, whole_number

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId
    from raysim.engine.policies.system import Devices


def cohort_size(participation: float, num_clients: int) -> int:
    """Return K = floor(participation * N). Rounding errors are tolerated: 0.29 of 100 is 29."""
    return math.floor(participation * num_clients + 1e-9)


def selected_size(size: int, oversample: float) -> int:
    """Return how many clients to select if `size` of them should count: with oversampling by 1.3, 13 for 10."""
    return math.ceil(oversample * size - 1e-9)


@dataclass(frozen=True)
class Candidates:
    """The clients that can be selected in a round, and facts about them that a selection may use."""

    ids: tuple[ClientId, ...]  # ascending; more than are to be selected
    num_samples: Mapping[ClientId, int]  # n_k, the number of training samples
    round: int = 1
    system: Devices | None = None  # their devices and connections, if the scenario describes them


class Selection(Protocol):
    """A named selection policy: a frozen dataclass whose fields are the keys of `clients.selection`."""

    def select(self, candidates: Candidates, size: int, rng: np.random.Generator) -> Sequence[ClientId]:
        """Return `size` different candidates; a pure function of the arguments. Draw random numbers from `rng`."""


@dataclass(frozen=True)
class UniformSelection:
    """Clients are drawn with equal probabilities."""

    def select(self, candidates: Candidates, size: int, rng: np.random.Generator) -> Sequence[ClientId]:
        """See `Selection`."""
        return [candidates.ids[i] for i in rng.choice(len(candidates.ids), size=size, replace=False).tolist()]


@dataclass(frozen=True)
class BySamples:
    """Clients are drawn one by one, with probabilities proportional to their numbers of training samples."""

    def select(self, candidates: Candidates, size: int, rng: np.random.Generator) -> Sequence[ClientId]:
        """See `Selection`."""
        weight = np.array([candidates.num_samples[k] for k in candidates.ids], dtype=np.float64)
        return rng.choice(np.asarray(candidates.ids), size, replace=False, p=weight / weight.sum()).tolist()


@dataclass(frozen=True)
class Fastest:
    """Candidates are drawn uniformly, and those with the greatest `system.flops_per_s` are selected."""

    candidates: Annotated[float, Range(ge=1)] = 2.0
    """Number of candidates as a multiple of the number of clients to select, limited to the available clients."""

    def select(self, candidates: Candidates, size: int, rng: np.random.Generator) -> Sequence[ClientId]:
        """See `Selection`."""
        assert candidates.system is not None, "a scenario with `fastest` must have system.flops_per_s"
        drawn = rng.permutation(np.asarray(candidates.ids))[: selected_size(size, self.candidates)].tolist()
        speed = candidates.system.flops_per_s
        return sorted(drawn, key=lambda k: (-speed[k], k))[:size]


@dataclass(frozen=True)
class PoissonSelection:
    """Each client is drawn independently, so the number of clients varies and can be 0; for privacy accounting."""

    any_number: ClassVar[bool] = True

    def select(self, candidates: Candidates, size: int, rng: np.random.Generator) -> Sequence[ClientId]:
        """See `Selection`; `size` is the expected number of clients."""
        drawn_N = rng.random(len(candidates.ids)) < size / len(candidates.ids)
        return [k for k, chosen in zip(candidates.ids, drawn_N.tolist(), strict=True) if chosen]


SELECTIONS: dict[str, type] = {
    "uniform": UniformSelection,
    "by_samples": BySamples,
    "fastest": Fastest,
    "poisson": PoissonSelection,
}
"""Name in a scenario -> policy. A custom policy is named as `./mine.py:Mine`."""


def draw_share(seed: int, purpose: str, share: float, num_clients: int) -> frozenset[ClientId]:
    """Draw a share of all clients once per run, rounded down. Draws for different purposes are independent."""
    rng = np.random.default_rng(seed_for(seed, purpose))
    return frozenset(rng.choice(num_clients, cohort_size(share, num_clients), replace=False).tolist())


@dataclass(frozen=True)
class Participation:
    """The selection of clients in a round, and which of the selected clients count."""

    selection: Selection = field(default_factory=UniformSelection)
    seed: int | None = None  # replaces the run's seed
    oversample: float = 1.0
    deadline_s: float | None = None  # in virtual time
    system: Devices | None = None


def cohort(
    seed: int,
    t: int,
    eligible: Sequence[ClientId],
    size: int,
    num_samples: Mapping[ClientId, int] | None = None,
    participation: Participation | None = None,
) -> tuple[ClientId, ...]:
    """Return the clients selected in round `t`, in id order: `size` clients, or more with `oversample`.

    If fewer eligible clients are available, return all of them. The default draws uniformly, without replacement.
    eligible: ascending ids. participation: the selection policy and its settings; default: `Participation()`.
    """
    participation = participation or Participation()
    size = selected_size(size, participation.oversample)
    system = participation.system
    # A custom policy cannot change a tuple. The run's ids of eligible clients are a tuple, which is not copied.
    ids = tuple(eligible if system is None else system.available(seed, t, eligible))
    if size >= len(ids):
        return ids
    rng = np.random.default_rng(seed_for(seed, "cohort", t))
    name = f"round {t}: {type(participation.selection).__name__}.select"
    candidates = Candidates(ids, num_samples or {}, t, system)
    with failing(f"{name} fails"):
        drawn: list[Any] = list(participation.selection.select(candidates, size, rng))
    chosen = [k for k in map(whole_number, drawn) if k is not None and _holds(ids, k)]
    size = len(drawn) if getattr(participation.selection, "any_number", False) else size
    if len(drawn) != size or len({*chosen}) != size:
        raise RunError(
            f"{name} returned {len(drawn)} clients, {quoted(drawn)}; it must return the ids of {size} different "
            f"clients among the {len(ids)} candidates"
        )
    return tuple(sorted(chosen))


def _holds(ids: Sequence[ClientId], k: ClientId) -> bool:
    """Return whether ascending ids contain `k`."""
    place = bisect_left(ids, k)
    return place < len(ids) and ids[place] == k
