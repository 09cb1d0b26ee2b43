"""Methods in which each client has a second network, which all clients share: FML, FedKD, FedAPEN.

Names of the client's own network begin with `own.`, those of the shared one with `small.`. Both take one step at once,
and their gradients are clipped together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.independent import loop
from tests.independent.loop import Result, Start, Weights


def fml(start: Start, a: float = 0.3, b: float = 0.6) -> Result:
    """Shen et al. 2020: both networks learn labels and each other's predictions."""
    nets = [loop.named("own.", net) for net in start.nets]

    def client(k: int, small: Weights, t: int) -> Weights:
        def loss(net: Weights, i: Tensor) -> Tensor:
            x, y = start.x[k][i], start.y[k][i]
            z, z_s = loop.logits(loop.part(net, "own."), x), loop.logits(loop.part(net, "small."), x)
            own = a * loop.cross_entropy(z, y) + (1 - a) * loop.kl(z_s.softmax(1), z).mean()
            return own + b * loop.cross_entropy(z_s, y) + (1 - b) * loop.kl(z.softmax(1), z_s).mean()

        nets[k] = loop.train(start, {**nets[k], **loop.named("small.", small)}, k, t, loss)
        return loop.part(nets[k], "small.")

    def server(_: Weights, ups: dict[int, Weights], t: int) -> Weights:
        return loop.mean(ups.values(), loop.sizes(start, ups))

    return nets, loop.named("small.", loop.rounds(start, start.shared["small"], client, server))


# -- FedKD -----------------------------------------------------------------------------------------------------------
def fedkd(start: Start, energy_start: float = 0.8, energy_end: float = 0.9) -> Result:
    """Wu et al. 2022: mutual distillation divided by the classification losses, and compressed changes."""
    nets = [{**loop.named("own.", net), **start.shared["projection"]} for net in start.nets]

    def energy(t: int) -> float:
        return energy_start + (energy_end - energy_start) * t / len(start.cohorts)

    def client(k: int, small: Weights, t: int) -> Weights:
        trained = loop.train(
            start, {**nets[k], **loop.named("small.", small)}, k, t, lambda net, i: mutual(start, k, net, i)
        )
        nets[k] = {name: value for name, value in trained.items() if not name.startswith("small.")}
        after = loop.part(trained, "small.")
        return {name: compressed(after[name] - value, energy(t)) for name, value in small.items()}

    def server(small: Weights, ups: dict[int, Weights], t: int) -> Weights:
        change = loop.mean(ups.values(), [1.0] * len(ups))
        return {name: value + compressed(change[name], energy(t)) for name, value in small.items()}

    return nets, loop.named("small.", loop.rounds(start, start.shared["small"], client, server))


def mutual(start: Start, k: int, net: Weights, i: Tensor) -> Tensor:
    """Return the sum of the losses of mentor and mentee."""
    x, y = start.x[k][i], start.y[k][i]
    mentor, mentee = loop.part(net, "own."), loop.part(net, "small.")
    f, f_s = loop.features(mentor, x), loop.features(mentee, x)
    z, z_s = loop.header(mentor, f), loop.header(mentee, f_s)
    ce, ce_s = loop.cross_entropy(z, y), loop.cross_entropy(z_s, y)
    seen = f_s @ net["projection"].T
    apart = loop.kl(z_s.softmax(1), z).mean() + (f - seen.detach()).square().mean()
    apart_s = loop.kl(z.softmax(1), z_s).mean() + (f.detach() - seen).square().mean()
    return ce + ce_s + (apart + apart_s) / divisor(ce, ce_s)


def divisor(ce: Tensor, ce_s: Tensor) -> Tensor:
    """Return the divisor of the distillation losses, a constant."""
    return (ce + ce_s).detach()


def compressed(change: Tensor, energy: float) -> Tensor:
    """Return a matrix with the fewest singular values that have this share of the squares, if that is smaller."""
    if change.dim() < 2:
        return change
    u, s, v = torch.linalg.svd(change, full_matrices=False)
    share = s.square().cumsum(0) / s.square().sum()
    rank = int((share < energy).sum()) + 1
    rows, columns = change.shape
    if rank * (rows + columns + 1) >= rows * columns:
        return change
    approximate: Tensor = u[:, :rank] @ torch.diag(s[:rank]) @ v[:rank]
    return approximate


# -- FedAPEN ---------------------------------------------------------------------------------------------------------
def fedapen(start: Start, lambda_lr: float = 0.1, lambda_epochs: int = 10, every: int = 10) -> Result:
    """Qin et al. 2023: mutual learning of two networks and their ensemble, whose weight each client learns.

    Every tenth sample only trains this weight, when the client receives the shared network, but not in its first round.
    """
    nets = [{**loop.named("own.", net), "lambda": torch.tensor(0.5).double()} for net in start.nets]

    def client(k: int, small: Weights, t: int) -> Weights:
        position = torch.arange(len(start.y[k]))
        tenth = (position + 1) % every == 0
        aside, others = position[tenth], position[~tenth]
        weight = nets[k].pop("lambda")
        if "small.header.bias" in nets[k]:  # the client has trained before
            pair = (loop.part(nets[k], "own."), small)
            weight = learned(start.x[k][aside], start.y[k][aside], pair, weight, lambda_lr, lambda_epochs)

        def loss(net: Weights, i: Tensor) -> Tensor:
            x, y = start.x[k][i], start.y[k][i]
            z, z_s = loop.logits(loop.part(net, "own."), x), loop.logits(loop.part(net, "small."), x)
            own = loop.cross_entropy(z, y) + loop.kl(z_s.softmax(1), z).mean()
            shared = loop.cross_entropy(z_s, y) + loop.kl(z.softmax(1), z_s).mean()
            e, e_s = ensemble(weight, z, z_s.detach()), ensemble(weight, z.detach(), z_s)
            return own + shared + loop.cross_entropy(e, y) + loop.cross_entropy(e_s, y)

        trained = loop.train(start, {**nets[k], **loop.named("small.", small)}, k, t, loss, others)
        nets[k] = {**trained, "lambda": weight}
        return loop.part(trained, "small.")

    def server(_: Weights, ups: dict[int, Weights], t: int) -> Weights:
        return loop.mean(ups.values(), [1.0] * len(ups))

    return nets, loop.named("small.", loop.rounds(start, start.shared["small"], client, server))


def ensemble(weight: Tensor, z: Tensor, z_s: Tensor) -> Tensor:
    """Return the ensemble's logits."""
    return weight * z + (1 - weight) * z_s


def learned(x: Tensor, y: Tensor, pair: tuple[Weights, Weights], weight: Tensor, lr: float, epochs: int) -> Tensor:
    """Return the weight of the client's own network after plain gradient descent between 0 and 1."""
    z, z_s = (loop.logits(net, x) for net in pair)
    for _ in range(epochs if len(y) else 0):
        weight = weight.detach().requires_grad_()
        slope = torch.autograd.grad(loop.cross_entropy(ensemble(weight, z, z_s), y), weight)[0]
        weight = (weight.detach() - lr * slope).clamp(0, 1)
    return weight.detach()
