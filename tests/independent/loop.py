"""The federated loop in plain torch, and what all methods of this folder share.

The modules of this folder, except for the test, are a second implementation of sixteen methods. It was written from the
papers' equations without reading raysim's code, and it imports nothing of raysim. Where a paper leaves a choice open,
the second implementation follows `docs/methods`. A network is a mapping of names to tensors: an extractor of one layer
with ReLU, then a linear header. Numbers are float64.

A method is a function of `Start`. It returns all clients' networks after the last round, and the tensors that the
server would send to client 0 next.

Shapes: N samples of a client, B batch, D representation width, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Networks = list[Weights]
Result = tuple[Networks, Weights]
Loss = Callable[[Weights, Tensor], Tensor]  # (network, positions of a batch) -> scalar
OfClass = dict[int, Tensor]  # class -> row
State = TypeVar("State")  # of the server
Upload = TypeVar("Upload")

CLASSES = 10


@dataclass(frozen=True)
class Start:
    """Everything that a run begins with."""

    nets: Networks  # of each client
    shared: Mapping[str, Weights]  # initial weights of the server, by kind
    x: list[Tensor]  # of each client, [N, pixels]
    y: list[Tensor]  # of each client, [N]
    cohorts: list[list[int]]  # participants of each round, ascending
    batches: Callable[[int, int, Tensor], list[Tensor]]
    """(round, client, positions of the samples to train on) -> positions of each batch, for all epochs"""
    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    clip: float = float("inf")

    def owned(self, k: int) -> list[int]:
        """Return the classes of a client, ascending."""
        return sorted(set(self.y[k].tolist()))

    def copies(self) -> Networks:
        """Return the clients' initial networks, to be replaced one by one."""
        return [dict(net) for net in self.nets]


def rounds(
    start: Start,
    state: State,
    client: Callable[[int, State, int], Upload],
    server: Callable[[State, dict[int, Upload], int], State],
) -> State:
    """Run all rounds, counted from 1: clients train one after another, then the server makes its next state."""
    for t, cohort in enumerate(start.cohorts, 1):
        uploads = {k: client(k, state, t) for k in cohort}
        state = server(state, uploads, t)
    return state


# -- networks --------------------------------------------------------------------------------------------------------
def features(net: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return representations [B, D]."""
    return (x @ net["extractor.weight"].T + net["extractor.bias"]).clamp(min=0)


def header(net: Mapping[str, Tensor], f: Tensor) -> Tensor:
    """Return the logits [B, C] of representations."""
    return f @ net["header.weight"].T + net["header.bias"]


def logits(net: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return logits [B, C]."""
    return header(net, features(net, x))


def header_of(net: Weights) -> Weights:
    """Return the header alone."""
    return {name: value for name, value in net.items() if name.startswith("header.")}


def part(net: Weights, prefix: str) -> Weights:
    """Return one of several networks in a mapping."""
    return {name.removeprefix(prefix): value for name, value in net.items() if name.startswith(prefix)}


def named(prefix: str, net: Weights) -> Weights:
    """Return the network with a prefix before its names."""
    return {prefix + name: value for name, value in net.items()}


# -- losses ----------------------------------------------------------------------------------------------------------
def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean of -log softmax(z)[y]."""
    return -z.log_softmax(1)[torch.arange(len(y)), y].mean()


def kl(teacher: Tensor, z: Tensor) -> Tensor:
    """Return KL(teacher || softmax(z)) of each sample, [B]; teacher: probabilities, which get no gradient."""
    teacher = teacher.detach()
    return (torch.xlogy(teacher, teacher) - teacher * z.log_softmax(1)).sum(1)


def known(rows: OfClass, y: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the row of each sample's class [B, width], and which samples have one, [B]; the others have zeros."""
    none = torch.zeros(width).double()
    return torch.stack([rows.get(c, none) for c in y.tolist()]), torch.tensor([c in rows for c in y.tolist()])


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the sum over the samples that count, divided by the number of all."""
    return (values * counted).sum() / len(values)


# -- training --------------------------------------------------------------------------------------------------------
def train(start: Start, net: Weights, k: int, t: int, loss: Loss, among: Tensor | None = None) -> Weights:
    """Return the network after a client's local training by SGD; its momentum starts at zero.

    among: positions of the samples to train on; None: all.
    """
    among = torch.arange(len(start.y[k])) if among is None else among
    speed: Weights = {}
    for batch in start.batches(t, k, among):
        leaf = {name: value.detach().requires_grad_() for name, value in net.items()}
        gradient = dict(zip(leaf, torch.autograd.grad(loss(leaf, batch), list(leaf.values())), strict=True))
        scale = clip_scale(gradient, start.clip)
        for name, value in net.items():
            step = scale * gradient[name] + start.decay * value
            speed[name] = start.momentum * speed[name] + step if name in speed else step
        net = {name: value - start.lr * speed[name] for name, value in net.items()}
    return net


def clip_scale(gradient: Weights, limit: float) -> float:
    """Return the factor that limits the norm over all tensors."""
    norm = math.sqrt(sum(float(value.square().sum()) for value in gradient.values()))
    return min(1.0, limit / max(norm, 1e-12))


def local_loss(start: Start, k: int) -> Loss:
    """Return the plain classification loss of a client."""
    return lambda net, i: cross_entropy(logits(net, start.x[k][i]), start.y[k][i])


# -- means -----------------------------------------------------------------------------------------------------------
def sizes(start: Start, clients: Collection[int]) -> list[float]:
    """Return the clients' numbers of samples, as weights of a mean."""
    return [float(len(start.y[k])) for k in clients]


def mean(parts: Collection[Weights], weights: list[float]) -> Weights:
    """Return the weighted mean of each tensor."""
    names = next(iter(parts))
    return {
        name: sum((w * one[name] for w, one in zip(weights, parts, strict=True)), torch.zeros(()).double())
        / sum(weights)
        for name in names
    }


def class_means(values: Tensor, y: Tensor) -> dict[int, Tensor]:
    """Return the mean row of each class that occurs, in ascending order of the classes."""
    return {c: values[y == c].mean(0) for c in sorted(set(y.tolist()))}


def mean_over_owners(uploads: Mapping[int, Mapping[int, Tensor]], c: int) -> Tensor | None:
    """Return the unweighted mean of a class's rows over the clients that sent one; None: no client did."""
    rows = [of_class[c] for of_class in uploads.values() if c in of_class]
    return torch.stack(rows).mean(0) if rows else None


# -- whole models ----------------------------------------------------------------------------------------------------
def standalone(start: Start) -> Result:
    """Every participant trains its own network; nothing is sent."""
    nets = start.copies()

    def client(k: int, _: None, t: int) -> None:
        nets[k] = train(start, nets[k], k, t, local_loss(start, k))

    rounds(start, None, client, lambda state, ups, t: None)
    return nets, {}


def fedavg(start: Start) -> Result:
    """Participants train the server's model, and the server averages by numbers of samples."""
    nets = start.copies()

    def client(k: int, model: Weights, t: int) -> Weights:
        nets[k] = train(start, model, k, t, local_loss(start, k))
        return nets[k]

    def server(model: Weights, ups: dict[int, Weights], t: int) -> Weights:
        return mean(ups.values(), sizes(start, ups))

    return nets, rounds(start, start.nets[0], client, server)
