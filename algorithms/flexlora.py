"""FlexLoRA: the server averages the products of adapters of different ranks, and splits the mean by its SVD.

Bai, Chen, Qian, Yao, Li. NeurIPS 2024. https://arxiv.org/abs/2402.11505
All architectures are one frozen network with adapters (LoRA) of several ranks. A participant trains its adapters and
sends them. The server averages what they add to the weights of each layer, and sends to each client the adapters of the
client's rank that are nearest to the mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from raysim.core import Algorithm, Client, ClientId, Model, Server, Task, UpdateOf, Weights, weights
from raysim.core.adapters import (
    Adapted,
    Factors,
    adapted_models,
    check_ranks,
    factors,
    rank_of,
    without_adapters,
)
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FlexLoRA(Algorithm[Model, Model, dict[str, Adapted]]):
    """Average products of adapters. Each client gets the nearest product that its rank can express."""

    paper: ClassVar[str] = "Bai et al., NeurIPS 2024, https://arxiv.org/abs/2402.11505"

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

    def mean(self, server: Server[dict[str, Adapted]], sent: Mapping[ClientId, Adapted], layer: str) -> list[Factors]:
        """Return products whose sum is the mean of what participants' adapters add to a layer."""
        total = sum(server.num_samples[k] for k in sent)
        # Eq. A
        return [factors(one, layer, server.num_samples[k] / total) for k, one in sent.items()]

    def server_update(self, server: Server[dict[str, Adapted]], ups: Mapping[ClientId, Model]) -> None:
        sent = {k: replace(server.state[server.arch[k]], w=up.w) for k, up in ups.items()}
        common = server.mean({k: without_adapters(one) for k, one in sent.items()})
        values = []
        for layer in next(iter(sent.values())).scaling:
            svd = svd_of_sum(self.mean(server, sent, layer))
            values.append(svd[1])
            for own in server.state.values():
                own.w.update(nearest(svd, own, layer))  # Eq. B
        for own in server.state.values():
            own.w.update(common)
        smallest = min(rank_of(one.w, layer) for one in server.state.values() for layer in one.scaling)
        server.log("energy_beyond_smallest_rank", energy_beyond(smallest, values))

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)


def svd_of_sum(products: Sequence[Factors]) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [m, R], S [R] and V^T [R, n] of a sum of products, with R at most the sum of their ranks."""
    left, right = torch.cat([b for b, _ in products], 1), torch.cat([a for _, a in products])
    q_mr, left = torch.linalg.qr(left)
    q_nr, right = torch.linalg.qr(right.T)
    u, s, vt = torch.linalg.svd(left @ right.T, full_matrices=False)
    return q_mr @ u, s, vt @ q_nr.T


def nearest(svd: tuple[Tensor, Tensor, Tensor], like: Adapted, layer: str) -> Weights:
    """Return the adapter with the rank of `like` that is nearest to a product: A = V^T, B = U S of the largest values.

    Where the sum has a lower rank than the adapter, B is 0 and A is not, so that training can still use these parts.
    """
    u_mr, s_r, vt_rn = svd
    a_rn, b_mr = like.w[f"{layer}.lora_A"].clone(), torch.zeros_like(like.w[f"{layer}.lora_B"])
    rank = min(len(a_rn), len(s_r))
    a_rn[:rank] = vt_rn[:rank]
    b_mr[:, :rank] = (u_mr * s_r / like.scaling[layer])[:, :rank]
    return {f"{layer}.lora_A": a_rn, f"{layer}.lora_B": b_mr}


def energy_beyond(rank: int, values: Sequence[Tensor]) -> float:
    """Return the share of the squared singular values of all layers that lies beyond the first `rank` of them."""
    energy = [value_r.square() for value_r in values]
    whole = float(torch.cat(energy).sum())
    return float(torch.cat([energy_r[rank:] for energy_r in energy]).sum()) / whole if whole else 0.0
