"""Methods that share knowledge of classes or samples instead of weights: FD, FedProto, FedTGP, FedCache, HKS.

A client's networks are those of `loop.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tests.independent import loop
from tests.independent.loop import CLASSES, OfClass, Result, Start, Weights
from tests.independent.ward import paths


# -- FD --------------------------------------------------------------------------------------------------------------
class Logits(NamedTuple):
    """The server of FD: the mean logits of each class, and what the participants of the last round sent."""

    mean: OfClass
    last: dict[int, OfClass]


def fd(start: Start, gamma: float = 1.0) -> Result:
    """Jeong et al. 2018: clients distil from the mean logits of each class over the other participants."""
    nets = start.copies()

    def client(k: int, down: Logits, t: int) -> OfClass:
        teachers = teachers_of(down, k, start.owned(k))

        def loss(net: Weights, i: Tensor) -> Tensor:
            z, y = loop.logits(net, start.x[k][i]), start.y[k][i]
            teacher, counted = loop.known(teachers, y, CLASSES)
            return loop.cross_entropy(z, y) + gamma * loop.masked_mean(loop.kl(teacher.softmax(1), z), counted)

        nets[k] = loop.train(start, nets[k], k, t, loss)
        return loop.class_means(loop.logits(nets[k], start.x[k]), start.y[k])

    def server(state: Logits, ups: dict[int, OfClass], t: int) -> Logits:
        return Logits(updated(state.mean, ups), ups)

    loop.rounds(start, Logits({}, {}), client, server)
    return nets, {}


def teachers_of(server: Logits, k: int, owned: list[int]) -> OfClass:
    """Return a client's teachers: for a participant of the last round, the means without its own logits."""
    if k not in server.last:
        return {c: server.mean[c] for c in owned if c in server.mean}
    others = {j: up for j, up in server.last.items() if j != k}
    means = {c: loop.mean_over_owners(others, c) for c in owned}
    return {c: row for c, row in means.items() if row is not None}


def updated(before: OfClass, ups: dict[int, OfClass]) -> OfClass:
    """Return the mean rows of the classes that were sent, and the earlier rows of the others."""
    means = {c: loop.mean_over_owners(ups, c) for c in range(CLASSES)}
    return {**before, **{c: row for c, row in means.items() if row is not None}}


# -- FedProto and FedTGP ---------------------------------------------------------------------------------------------
def fedproto(start: Start, weight: float = 1.0) -> Result:
    """Tan et al. 2022: representations are pulled to the mean representation of their class."""
    nets = start.copies()

    def client(k: int, down: OfClass, t: int) -> OfClass:
        return trained_with_prototypes(start, nets, k, t, down, weight)

    def server(state: OfClass, ups: dict[int, OfClass], t: int) -> OfClass:
        return updated(state, ups)

    nothing: OfClass = {}
    rows = loop.rounds(start, nothing, client, server)
    width = len(nets[0]["extractor.bias"])
    return nets, {"prototypes": loop.known(rows, torch.arange(CLASSES), width)[0]}


def trained_with_prototypes(start: Start, nets: list[Weights], k: int, t: int, down: OfClass, weight: float) -> OfClass:
    """Train a client's network with a pull to global prototypes, and return the client's own."""

    def loss(net: Weights, i: Tensor) -> Tensor:
        f, y = loop.features(net, start.x[k][i]), start.y[k][i]
        prototype, counted = loop.known(down, y, f.shape[1])
        pull = loop.masked_mean((f - prototype).square().mean(1), counted)
        return loop.cross_entropy(loop.header(net, f), y) + weight * pull

    nets[k] = loop.train(start, nets[k], k, t, loss)
    return loop.class_means(loop.features(nets[k], start.x[k]), start.y[k])


class Prototypes(NamedTuple):
    """The server of FedTGP: its network, the prototypes that it sends, and the classes of all uploads so far."""

    net: Weights
    rows: OfClass
    sent: set[int]


def fedtgp(start: Start, weight: float = 2.0, epochs: int = 5, tau: float = 100.0) -> Result:
    """Zhang et al. 2024: the server's network makes prototypes with a margin between classes.

    All prototypes of a round are one batch of the server, so that their order does not matter.
    """
    nets = start.copies()

    def client(k: int, down: Prototypes, t: int) -> OfClass:
        trained = {c: down.rows[c] for c in down.sent}  # the prototypes of other classes are still random
        return trained_with_prototypes(start, nets, k, t, trained, weight)

    def server(state: Prototypes, ups: dict[int, OfClass], t: int) -> Prototypes:
        p = torch.stack([row for up in ups.values() for row in up.values()])
        y = torch.tensor([c for up in ups.values() for c in up])
        net, margin = state.net, adaptive_margin(updated({}, ups), tau)
        for _ in range(epochs):
            leaf = {name: value.detach().requires_grad_() for name, value in net.items()}
            gradient = torch.autograd.grad(margin_loss(p, y, generated(leaf), margin), list(leaf.values()))
            net = {name: net[name] - start.lr * g for name, g in zip(leaf, gradient, strict=True)}
        return Prototypes(net, dict(enumerate(generated(net))), state.sent | set(y.tolist()))

    state = loop.rounds(start, Prototypes(start.shared["prototypes"], {}, set()), client, server)
    return nets, {"prototypes": torch.stack([state.rows[c] for c in range(CLASSES)])}


def generated(net: Weights) -> Tensor:
    """Return the prototypes of all classes, [C, D]."""
    hidden = (net["embedding"] @ net["weight1"].T + net["bias1"]).clamp(min=0)
    return hidden @ net["weight2"].T + net["bias2"]


def adaptive_margin(means: OfClass, tau: float) -> float:
    """Return the greatest distance of a class's mean to the nearest other one, at most tau."""
    gaps = [min(float((q - other).norm()) for o, other in means.items() if o != c) for c, q in means.items()]
    return min(max(gaps), tau)


def margin_loss(p: Tensor, y: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Return the cross-entropy of negative distances, of which that to the own class is increased by the margin."""
    distance = (p[:, None] - prototypes[None]).square().sum(2).sqrt()
    own = torch.nn.functional.one_hot(y, CLASSES)
    return loop.cross_entropy(-(distance + margin * own), y)


# -- FedCache --------------------------------------------------------------------------------------------------------
def fedcache(start: Start, neighbours: int = 4, alpha: float = 0.5, temperature: float = 3.0) -> Result:
    """Wu et al. 2024: samples distil from the latest logits of the most similar samples of their class."""
    nets, begin = start.copies(), offsets(start)
    near = nearest(torch.cat(start.x), torch.cat(start.y), neighbours)

    def client(k: int, cache: Tensor, t: int) -> Tensor:
        teacher = torch.stack([cache[near[begin[k] + i]].mean(0) for i in range(len(start.y[k]))])
        q, sent = (teacher / temperature).softmax(1), torch.zeros(len(start.y[k]), CLASSES).double()

        def loss(net: Weights, i: Tensor) -> Tensor:
            z = loop.logits(net, start.x[k][i])
            sent[i] = z.detach()
            distil = temperature**2 * loop.kl(q[i], z / temperature).mean()
            return loop.cross_entropy(z, start.y[k][i]) + alpha * distil

        nets[k] = loop.train(start, nets[k], k, t, loss)
        return sent

    def server(cache: Tensor, ups: dict[int, Tensor], t: int) -> Tensor:
        cache = cache.clone()
        for k, z in ups.items():
            cache[begin[k] : begin[k] + len(z)] = z
        return cache

    loop.rounds(start, torch.zeros(sum(map(len, start.y)), CLASSES).double(), client, server)
    return nets, {}


def offsets(start: Start) -> list[int]:
    """Return the position of each client's first sample among the samples of all."""
    return [sum(len(y) for y in start.y[:k]) for k in range(len(start.y))]


def nearest(x: Tensor, y: Tensor, count: int) -> list[Tensor]:
    """Return the positions of each sample's nearest others of its class, by the cosine of images minus their mean."""
    h = x - x.mean(1, keepdim=True)
    h = h / h.norm(dim=1, keepdim=True)
    cosine = h @ h.T
    cosine[(y[:, None] != y[None]) | torch.eye(len(y), dtype=torch.bool)] = -torch.inf
    return [row.argsort(descending=True)[: min(count, int((row > -2).sum()))] for row in cosine]


# -- HKS -------------------------------------------------------------------------------------------------------------
class Clustered(NamedTuple):
    """The server of HKS: the latest logits of each client's samples, and the samples' teachers."""

    latest: dict[int, Tensor]
    teachers: dict[int, Tensor]


def hks(start: Start, level: str = "all", alpha: float = 4.0, temperature: float = 2.0, warmup: int = 2) -> Result:
    """Tam et al. 2025: samples distil from the mean logits of the clusters that contain them."""
    nets = start.copies()

    def client(k: int, down: Clustered, t: int) -> Tensor:
        nothing = torch.zeros(len(start.y[k]), CLASSES).double()
        q, sent = down.teachers.get(k, nothing), nothing.clone()

        def loss(net: Weights, i: Tensor) -> Tensor:
            z = loop.logits(net, start.x[k][i])
            sent[i] = z.detach()
            return loop.cross_entropy(z, start.y[k][i]) + alpha * loop.kl(q[i], z / temperature).mean()

        nets[k] = loop.train(start, nets[k], k, t, loss)
        return sent

    def server(state: Clustered, ups: dict[int, Tensor], t: int) -> Clustered:
        if t < warmup or t == len(start.cohorts):
            return state
        latest = {**state.latest, **ups}
        return Clustered(latest, distributions(latest, level, temperature))

    loop.rounds(start, Clustered({}, {}), client, server)
    return nets, {}


def distributions(latest: dict[int, Tensor], level: str, temperature: float) -> dict[int, Tensor]:
    """Return the teacher of each sample whose logits the server has, by client, as probabilities [N, C]."""
    clients = sorted(latest)
    z = torch.cat([latest[k] for k in clients])
    centres, of_sample = paths(z.numpy(), CLASSES)
    cluster, sample = (torch.softmax(one / temperature, 1) for one in (torch.from_numpy(centres), z))
    rows = []
    for i, path in enumerate(of_sample):
        chosen = {"all": path, "middle": path[len(path) // 2 :][:1], "top": path[-1:], "bottom": path[:1]}[level]
        rows.append(cluster[chosen].mean(0) if path else sample[i])
    return dict(zip(clients, torch.split(torch.stack(rows), [len(latest[k]) for k in clients]), strict=True))
