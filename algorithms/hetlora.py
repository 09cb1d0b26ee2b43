"""HetLoRA: adapters of different ranks are padded with zeros, averaged, and cut to each client's rank.

Cho, Liu, Xu, Fahrezi, Joshi. EMNLP 2024. https://arxiv.org/abs/2401.06432
All architectures are one frozen network with adapters (LoRA) of several ranks. A participant trains its adapters and
sends them. The server averages A and B of all participants, with more weight for adapters with a larger product. With
self-pruning, a client lowers its rank if training made the last part of its adapters smaller.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Model, NonNegative, Server, Task, UpdateOf, Weights, weights
from raysim.core.adapters import (
    Adapted,
    Factors,
    LoraLinear,
    adapted_models,
    check_ranks,
    factors,
    rank_of,
    without_adapters,
)
from raysim.core.exposed import known_at
from raysim.core.fields import Range
from raysim.core.ops import cross_entropy, weighted_mean


@dataclass(frozen=True)
class State:
    """The server's state: weights with adapters of the highest rank and of scaling 1, and facts about the clients."""

    w: Weights
    scaling: dict[str, dict[str, float]]  # architecture -> layer -> scaling
    rank: dict[ClientId, int]


@dataclass(frozen=True)
class HetLoRA(Algorithm[Model, Model, State]):
    """Average adapters padded with zeros to one rank, weighted by the norm of their product."""

    paper: ClassVar[str] = "Cho et al., EMNLP 2024, https://arxiv.org/abs/2401.06432"
    stale_uploads = True

    weighting: Literal["norm", "samples", "equal"] = "norm"
    """Weights of clients in the mean of adapters: the Frobenius norm of their product (the paper), their numbers of
    samples, or all equal."""
    gamma: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of the rank that a client keeps when it prunes its adapters; 1: no pruning."""
    penalty: NonNegative = 0.001
    """Weight, in the loss, of the norm of the part that may be pruned; only used with `gamma` below 1."""

    def check(self, task: Task) -> None:
        check_ranks(task)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        model.register_buffer("rank", torch.tensor(highest_rank(model)))
        return model

    def server_start(self, server: Server[State], registrations: Mapping[ClientId, Any]) -> State:
        models = adapted_models(server.task)
        ranks = {arch: max(rank_of(one.w, layer) for layer in one.scaling) for arch, one in models.items()}
        widest = models[max(ranks, key=lambda arch: ranks[arch])]
        scaling = {arch: one.scaling for arch, one in models.items()}
        return State(scaled(widest.w, widest.scaling), scaling, {k: ranks[arch] for k, arch in server.arch.items()})

    def server_send(self, server: Server[State], to: ClientId) -> Model:
        state = server.state
        inverse = {layer: 1 / s for layer, s in state.scaling[server.arch[to]].items()}
        return Model(scaled(leading(state.w, state.rank[to]), inverse))

    def client_receive(self, client: Client, down: Model) -> None:
        load(client.net, down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        net = client.net
        if self.gamma == 1:
            client.fit(cross_entropy)
        else:
            rank = int(net.rank)
            kept = max(1, math.floor(self.gamma * rank))
            place_r = torch.arange(highest_rank(net), device=net.rank.device)
            last_r = ((place_r >= kept) & (place_r < rank)).float()  # 1 for the part that may be pruned
            before = float(norm_of(net, last_r).detach())
            client.fit(self.penalised, last_r)
            if float(norm_of(net, last_r).detach()) < before:
                net.rank.fill_(kept)
                load(net, {name: w for name, w in weights(net).items() if name != "rank"})
            client.log("rank", int(net.rank))
        return Model(leading({name: w for name, w in weights(net).items() if name != "rank"}, int(net.rank)))

    def penalised(self, net: Any, batch: Batch, last_r: Tensor) -> Tensor:
        """The loss with a penalty on the part that may be pruned."""
        return cross_entropy(net, batch, None) + self.penalty * norm_of(net, last_r)  # Eq. A

    def server_update(self, server: Server[State], ups: Mapping[ClientId, Model]) -> None:
        state = server.state
        sent = {k: Adapted(up.w, state.scaling[server.arch[k]]) for k, up in ups.items()}
        w = server.mean({k: without_adapters(one) for k, one in sent.items()})
        for layer in next(iter(sent.values())).scaling:
            names = [f"{layer}.lora_A", f"{layer}.lora_B"]
            weight = {k: self._weight(one, layer, server.num_samples[k]) for k, one in sent.items()}
            if not any(weight.values()):
                weight = dict.fromkeys(weight, 1.0)  # the products are all 0, so weights are equal
            scaled_w = {k: scaled({name: one.w[name] for name in names}, one.scaling) for k, one in sent.items()}
            # Eq. B
            w |= weighted_mean(
                (weight[k], {name: cut(value, state.w[name]) for name, value in part.items()})
                for k, part in scaled_w.items()
            )
        ranks = {k: max(rank_of(one.w, layer) for layer in one.scaling) for k, one in sent.items()}
        server.state = replace(state, w=w, rank=state.rank | ranks)

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        own = client.net.state_dict()
        sent = {name: known_at(tuple(map(slice, w.shape)), w, own[name]) for name, w in up.w.items()}
        return UpdateOf(client.net, sent)

    def _weight(self, one: Adapted, layer: str, samples: int) -> float:
        """Return the weight of a client in the mean of a layer's adapters."""
        if self.weighting == "norm":
            return norm(factors(one, layer))
        return samples if self.weighting == "samples" else 1


def adapters(net: nn.Module) -> list[LoraLinear]:
    """Return the layers of a network that have adapters."""
    return [one for one in net.modules() if isinstance(one, LoraLinear)]


def highest_rank(net: nn.Module) -> int:
    """Return the highest rank of a network's adapters."""
    return max(len(one.lora_A) for one in adapters(net))


def load(net: Any, w: Weights) -> None:
    """Load weights with adapters of any rank. Parts beyond the client's rank become 0, and stay 0 in training."""
    own, part = net.state_dict(), leading(w, int(net.rank))
    net.load_state_dict({name: cut(value, own[name]) for name, value in part.items()} | {"rank": own["rank"]})


def leading(w: Weights, rank: int) -> Weights:
    """Return weights with at most the first `rank` parts of each adapter."""
    ends = {"lora_A": (slice(rank),), "lora_B": (slice(None), slice(rank))}
    return {name: value[ends.get(name.rpartition(".")[2], ...)].clone() for name, value in w.items()}


def scaled(w: Weights, scaling: Mapping[str, float]) -> Weights:
    """Return weights in which the B of each layer's adapter is multiplied by a number."""
    factors = {f"{layer}.lora_B": s for layer, s in scaling.items()}
    return {name: value * factors[name] if name in factors else value for name, value in w.items()}


def norm_of(net: nn.Module, last_r: Tensor) -> Tensor:
    """Return the sum over layers of ||A|| ||B||, over the parts of the adapters for which `last_r` is 1."""
    norms = []
    for one in adapters(net):
        of_layer = last_r[: len(one.lora_A)]
        norms.append((one.lora_A * of_layer[:, None]).norm() * (one.lora_B * of_layer).norm())
    return torch.stack(norms).sum()


def norm(product: Factors) -> float:
    """Return the Frobenius norm of a product: ||B A||^2 is the sum over the entries of B^T B times those of A A^T."""
    b_mr, a_rn = product
    return math.sqrt(max(0.0, float(((b_mr.T @ b_mr) * (a_rn @ a_rn.T)).sum())))


def cut(value: Tensor, like: Tensor) -> Tensor:
    """Return the leading block of a tensor in the shape and type of `like`, padded with zeros if it is smaller."""
    block = torch.zeros_like(like)
    place = tuple(slice(min(sizes)) for sizes in zip(value.shape, like.shape, strict=True))
    block[place] = value[place]
    return block
