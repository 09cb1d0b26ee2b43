"""raFLoRA: each part of the adapters' products is averaged over the clients whose rank reaches it.

Wu, Hu, Min, Wang. 2026. https://arxiv.org/abs/2602.13486
As in FlexLoRA, all architectures are one frozen network with adapters (LoRA) of several ranks, and the server divides
the mean of their products by its SVD. In a mean over all participants, the parts beyond the smallest rank shrink in
every round, since narrow clients add nothing to them. Here, the i-th part of a product, which is the outer product of
B's i-th column and A's i-th row, is averaged over the participants of rank i or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from raysim.core import Algorithm, Client, ClientId, Model, Server, Task, UpdateOf, weights
from raysim.core.adapters import (
    Adapted,
    Factors,
    adapted_models,
    check_ranks,
    energy_beyond,
    factors,
    nearest,
    rank_of,
    svd_of_sum,
    without_adapters,
)
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class RaFLoRA(Algorithm[Model, Model, dict[str, Adapted]]):
    """Average each rank-1 part of the adapters' products over those who have it."""

    paper: ClassVar[str] = "Wu et al., 2026, https://arxiv.org/abs/2602.13486"

    def check(self, task: Task) -> None:
        check_ranks(task)

    def server_start(
        self, server: Server[dict[str, Adapted]], registrations: Mapping[ClientId, Any]
    ) -> dict[str, Adapted]:
        return adapted_models(server.task)

    def server_send(self, server: Server[dict[str, Adapted]], to: ClientId) -> Model:
        return Model(server.state[server.arch[to]].w)

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(cross_entropy)
        return Model(weights(client.net))

    def server_update(self, server: Server[dict[str, Adapted]], ups: Mapping[ClientId, Model]) -> None:
        sent = {k: replace(server.state[server.arch[k]], w=up.w) for k, up in ups.items()}
        common = server.mean({k: without_adapters(one) for k, one in sent.items()})
        values = []
        for layer in next(iter(sent.values())).scaling:
            svd = svd_of_sum(self._mean(server, sent, layer))
            values.append(svd[1])
            for own in server.state.values():
                own.w.update(nearest(svd, own, layer))  # Eq. B
        for own in server.state.values():
            own.w.update(common)
        smallest = min(rank_of(one.w, layer) for one in server.state.values() for layer in one.scaling)
        server.log("energy_beyond_smallest_rank", energy_beyond(smallest, values))

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)

    def _mean(self, server: Server[dict[str, Adapted]], sent: Mapping[ClientId, Adapted], layer: str) -> list[Factors]:
        """Return products whose sum is the mean; parts that no participant has are those of the state."""
        highest = max(server.state.values(), key=lambda one: rank_of(one.w, layer))
        total_r = torch.zeros(rank_of(highest.w, layer), dtype=torch.float64)
        for k, one in sent.items():
            total_r[: rank_of(one.w, layer)] += server.num_samples[k]
        # Eq. A
        mean = [
            factors(one, layer, server.num_samples[k] / total_r[: rank_of(one.w, layer)]) for k, one in sent.items()
        ]
        return [*mean, factors(highest, layer, (total_r == 0).double())]
