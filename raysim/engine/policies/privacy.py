"""Differential privacy of clients (section `privacy`): clipping of uploads, noise, and privacy accounting."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from raysim.core.seeds import seeded

if TYPE_CHECKING:
    from torch import Tensor

    from raysim.core.algorithm import ClientId


@dataclass(frozen=True)
class ClientPrivacy:
    """Clipping, noise and accounting. As a stage, it changes uploads; see `raysim.engine.stages`."""

    clip: float
    noise_multiplier: float
    noise_at: Literal["server", "client"]
    delta: float
    accountant: Literal["rdp", "pld"]
    sampling: Literal["poisson", "uniform", "other"]
    share: float  # q, the expected share of the clients in a round
    clients: int
    seed: int

    def among(self, clients: int) -> ClientPrivacy:
        """Return a copy for this number of clients, of which a round's clients are drawn."""
        return replace(self, share=min(1.0, self.share * self.clients / clients), clients=clients)

    @property
    def central(self) -> bool:
        """Whether noise is added to the mean at the server."""
        return self.noise_at == "server"

    @property
    def std(self) -> float:
        """Standard deviation of the noise in the server's sum or in each upload."""
        return self.noise_multiplier * self.clip

    def __call__(self, changes: Mapping[ClientId, Mapping[str, Tensor]], t: int) -> dict[ClientId, dict[str, Tensor]]:
        """Return the clipped uploads of round `t`, with noise if clients add it."""
        changed = {}
        for k, of_client in changes.items():
            norm = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in of_client.values()))
            factor = self.clip / norm if norm > self.clip else 1.0
            noise = not self.central and self.std > 0
            if factor == 1.0 and not noise:
                continue
            rng = seeded(self.seed, "privacy", t, k)
            changed[k] = {name: self._changed(tensor, factor, noise, rng) for name, tensor in of_client.items()}
        return changed

    def _changed(self, tensor: Tensor, factor: float, noise: bool, rng: Any) -> Tensor:
        import torch

        changed = tensor.double() * factor
        if noise:
            changed += self.std * torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
        return changed.to(tensor.dtype)


class Account:
    """The epsilon after each round of a run with noise, computed by the package dp-accounting."""

    def __init__(self, privacy: ClientPrivacy, cohort: Callable[[int], Sequence[ClientId]]) -> None:
        """cohort: the participants of a round; noise at a client is accounted for each round in which it sends."""
        self.privacy, self.cohort = privacy, cohort
        self.sent: Counter[ClientId] = Counter()
        self.until = 0  # the round up to which `sent` counts

    def epsilon(self, t: int) -> float:
        """Return epsilon after round `t`, for the delta of the scenario.

        It depends on the scenario and the round alone. With noise at the client, it is that of the client that has
        sent most often.
        """
        if self.privacy.central:
            return epsilon_of(self.privacy, t)
        for after in range(self.until + 1, t + 1):
            self.sent.update(self.cohort(after))
        self.until = max(self.until, t)
        return epsilon_of(self.privacy, max(self.sent.values(), default=0))


def epsilon_of(privacy: ClientPrivacy, times: int) -> float:
    """Return epsilon if the mechanism ran `times` times.

    Poisson sampling: two runs are neighbours if one has one client more (add or remove one). Otherwise a client may be
    exchanged for another, which changes the sum of a round by up to two clips: half the noise multiplier counts.
    """
    import dp_accounting as dp
    from dp_accounting import pld, rdp

    noise, neighbours = privacy.noise_multiplier, dp.NeighboringRelation.REPLACE_ONE
    if privacy.central and privacy.sampling == "poisson":
        neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = dp.PoissonSampledDpEvent(privacy.share, dp.GaussianDpEvent(noise))
    elif privacy.central and privacy.sampling == "uniform":
        size = round(privacy.share * privacy.clients)
        event = dp.SampledWithoutReplacementDpEvent(privacy.clients, size, dp.GaussianDpEvent(noise / 2))
    else:
        event = dp.GaussianDpEvent(noise / 2)
        # Half the noise multiplier already accounts for replacing a client, so the accountant must only add or remove
        # one.
        neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp-accounting warns of every order that it leaves out
    kind = rdp.RdpAccountant if privacy.accountant == "rdp" else pld.PLDAccountant
    accountant = kind(neighboring_relation=neighbours)
    if times:
        accountant.compose(dp.SelfComposedDpEvent(event, times))
    return float(accountant.get_epsilon(privacy.delta))
