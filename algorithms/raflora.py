"""raFLoRA: each rank-1 part of the adapters' products is averaged over the clients whose rank includes it.

Wu, Hu, Min, Wang. 2026. https://arxiv.org/abs/2602.13486
As in FlexLoRA, all architectures are one frozen network with adapters (LoRA) of several ranks, and the server divides
the mean of their products by its SVD. In a mean over all participants, the parts beyond the smallest rank shrink in
every round, since narrow clients add nothing to them. Here, the i-th part of a product, which is the outer product of
B's i-th column and A's i-th row, is averaged over the participants of rank i or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from raysim.algorithms.flexlora import FlexLoRA
from raysim.core import ClientId, Server
from raysim.core.adapters import Adapted, Factors, factors, rank_of


@dataclass(frozen=True)
class RaFLoRA(FlexLoRA):
    """Average each rank-1 part of the adapters' products over the clients that have it."""

    paper: ClassVar[str] = "Wu et al., 2026, https://arxiv.org/abs/2602.13486"

    def mean(self, server: Server[dict[str, Adapted]], sent: Mapping[ClientId, Adapted], layer: str) -> list[Factors]:
        """Return products whose sum is the mean. Parts that no participant has are taken from the state."""
        highest = max(server.state.values(), key=lambda one: rank_of(one.w, layer))
        total_r = torch.zeros(rank_of(highest.w, layer), dtype=torch.float64)
        for k, one in sent.items():
            total_r[: rank_of(one.w, layer)] += server.num_samples[k]
        # Eq. A
        parts = [
            factors(one, layer, server.num_samples[k] / total_r[: rank_of(one.w, layer)]) for k, one in sent.items()
        ]
        return [*parts, factors(highest, layer, (total_r == 0).double())]
