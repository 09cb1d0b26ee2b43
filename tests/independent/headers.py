"""Methods that share a header, or a matrix before it: LG-FedAvg, FedClassAvg, FedSSA, FedRAL, FedGH, DC-PFL.

Local training and means are in `loop.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tests.independent import loop
from tests.independent.loop import CLASSES, Loss, OfClass, Result, Start, Weights


def averaged_headers(start: Start, loss_of: Callable[[int, Weights], Loss]) -> Result:
    """The server averages whole headers by numbers of samples. loss_of: (client, received header) -> loss."""
    nets = start.copies()

    def client(k: int, down: Weights, t: int) -> Weights:
        nets[k] = loop.train(start, {**nets[k], **down}, k, t, loss_of(k, down))
        return loop.header_of(nets[k])

    def server(_: Weights, ups: dict[int, Weights], t: int) -> Weights:
        return loop.mean(ups.values(), loop.sizes(start, ups))

    return nets, loop.rounds(start, start.shared["header"], client, server)


def lg_fedavg(start: Start) -> Result:
    """Liang et al. 2020: plain local training."""
    return averaged_headers(start, lambda k, down: loop.local_loss(start, k))


# -- FedClassAvg -----------------------------------------------------------------------------------------------------
def fedclassavg(start: Start, rho: float = 2.0) -> Result:
    """Jang et al. 2022: cross-entropy, a contrastive loss over two views, and the distance to the received header.

    Without augmentation, both views are the same samples.
    """

    def loss_of(k: int, down: Weights) -> Loss:
        def loss(net: Weights, i: Tensor) -> Tensor:
            f, y = loop.features(net, start.x[k][i]), start.y[k][i]
            contrast = contrastive(torch.cat([f, f]), torch.cat([y, y]))
            return loop.cross_entropy(loop.header(net, f), y) + contrast + rho * proximal(net, down)

        return loss

    return averaged_headers(start, loss_of)


def proximal(net: Weights, down: Weights) -> Tensor:
    """Return half the mean square of the weights' differences plus half that of the biases'."""
    return torch.stack([0.5 * (net[name] - value).square().mean() for name, value in down.items()]).sum()


def contrastive(f: Tensor, y: Tensor, temperature: float = 0.07, base: float = 0.07) -> Tensor:
    """Return the supervised contrastive loss, whose anchors have length 1 and are compared with all others."""
    f = f / f.norm(dim=1, keepdim=True).clamp(min=1e-12)
    itself = torch.eye(len(y), dtype=torch.bool)
    similar = f @ f.T / temperature
    log_share = similar - similar.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (y[:, None] == y[None]) & ~itself
    return -temperature / base * ((log_share * positive).sum(1) / positive.sum(1)).mean()


# -- FedSSA ----------------------------------------------------------------------------------------------------------
class Rows(NamedTuple):
    """The server of FedSSA: the global header, and the latest header of each client that has participated."""

    header: Weights
    latest: dict[int, Weights]


def fedssa(start: Start, mu0: float = 0.5, t_stable: int = 4) -> Result:
    """Yi et al. 2024: header rows are averaged over the owners of their class, and fused with a client's own."""
    nets = start.copies()

    def client(k: int, down: Rows, t: int) -> Weights:
        net, own = dict(nets[k]), start.owned(k)
        for name, row in down.header.items():
            net[name] = net[name].clone()
            net[name][own] = row[own] + own_share(t, mu0, t_stable) * net[name][own]  # Eq. 4
        nets[k] = loop.train(start, net, k, t, loop.local_loss(start, k))
        return loop.header_of(nets[k])

    def server(state: Rows, ups: dict[int, Weights], t: int) -> Rows:
        latest = {**state.latest, **ups}
        header = {name: row.clone() for name, row in state.header.items()}
        for c in range(CLASSES):
            owners = [k for k in latest if c in start.owned(k)]
            for name in header if owners else ():
                header[name][c] = torch.stack([latest[k][name][c] for k in owners]).mean(0)  # Eq. 3
        return Rows(header, latest)

    header = loop.rounds(start, Rows(start.shared["header"], {}), client, server).header
    own = start.owned(0)  # after `t_stable`, a client's own rows have no weight
    current = {**nets[0], **{name: nets[0][name].clone() for name in header}}
    for name, row in header.items():
        current[name][own] = row[own]
    return nets, loop.header_of(current)


def own_share(t: int, mu0: float, t_stable: int) -> float:
    """Return the weight of a client's own rows in round t = 1, 2, ..., which the code counts from 0."""
    return mu0 * math.cos(math.pi * (t - 1) / (2 * t_stable)) if t - 1 < t_stable else 0.0


# -- FedRAL ----------------------------------------------------------------------------------------------------------
BLOCKS = (4, 8)
"""Numbers of diagonal blocks that clients send; client k sends `BLOCKS[k % 2]`."""


def fedral(start: Start) -> Result:
    """Yi et al. 2025: a matrix between extractor and header, of which clients send the diagonal blocks."""
    nets = start.copies()

    def client(k: int, matrix: Tensor, t: int) -> Tensor:
        def loss(net: Weights, i: Tensor) -> Tensor:
            return loop.cross_entropy(loop.header(net, angled(net["matrix"], net, start.x[k][i])), start.y[k][i])

        nets[k] = loop.train(start, {**nets[k], "matrix": matrix}, k, t, loss)
        return nets[k]["matrix"] * mask(BLOCKS[k % len(BLOCKS)], len(matrix))

    def server(_: Tensor, ups: dict[int, Tensor], t: int) -> Tensor:
        return loop.mean([{"A": up} for up in ups.values()], loop.sizes(start, ups))["A"]  # Eq. 7

    return nets, {"matrix": loop.rounds(start, start.shared["matrix"]["matrix"], client, server)}


def angled(matrix: Tensor, net: Weights, x: Tensor) -> Tensor:
    """Return R + R A, where R are representations as rows."""
    f = loop.features(net, x)
    return f + f @ matrix


def mask(blocks: int, width: int) -> Tensor:
    """Return the matrix with ones inside diagonal blocks."""
    block = torch.arange(width) * blocks // width
    return (block[:, None] == block[None]).double()


# -- FedGH and DC-PFL ------------------------------------------------------------------------------------------------
def header_step(header: Weights, rows: OfClass, lr: float) -> Weights:
    """Take one step of gradient descent on the mean cross-entropy of class means, by the gradient's formula."""
    weight, bias = torch.zeros_like(header["header.weight"]), torch.zeros_like(header["header.bias"])
    for c, row in rows.items():
        error = (header["header.weight"] @ row + header["header.bias"]).softmax(0)
        error[c] -= 1
        weight, bias = weight + error[:, None] * row / len(rows), bias + error / len(rows)
    return {"header.weight": header["header.weight"] - lr * weight, "header.bias": header["header.bias"] - lr * bias}


def fedgh(start: Start, header_lr: float = 0.5) -> Result:
    """Yi et al. 2023: the server trains its header on one class mean of one client after another."""
    nets = start.copies()

    def client(k: int, down: Weights, t: int) -> OfClass:
        nets[k] = loop.train(start, {**nets[k], **down}, k, t, loop.local_loss(start, k))
        return loop.class_means(loop.features(nets[k], start.x[k]), start.y[k])

    def server(header: Weights, ups: dict[int, OfClass], t: int) -> Weights:
        for k in sorted(ups):
            for c in sorted(ups[k]):
                header = header_step(header, {c: ups[k][c]}, header_lr)
        return header

    return nets, loop.rounds(start, start.shared["header"], client, server)


class Global(NamedTuple):
    """The server of DC-PFL: its header and the known class means."""

    header: Weights
    means: OfClass


Samples = tuple[Tensor, Tensor]  # representations [N, D] and labels [N]


def dc_pfl(start: Start, header_lr: float = 0.5, weight: float = 0.3, virtual: int = 0) -> Result:
    """Tang et al. 2024: a pull towards pooled class means, a server step per client, and virtual samples.

    Clients send what the server's statistics are computed from.
    """
    nets = start.copies()

    def client(k: int, down: Global, t: int) -> Samples:
        def loss(net: Weights, i: Tensor) -> Tensor:
            f, y = loop.features(net, start.x[k][i]), start.y[k][i]
            return loop.cross_entropy(loop.header(net, f), y) + weight * pull(f, y, down.means)

        nets[k] = loop.train(start, {**nets[k], **down.header}, k, t, loss)
        return loop.features(nets[k], start.x[k]), start.y[k]

    def server(state: Global, ups: dict[int, Samples], t: int) -> Global:
        header = state.header
        for k in sorted(ups):
            header = header_step(header, loop.class_means(*ups[k]), header_lr)  # Eq. 9
        if virtual:
            header = refitted(header, virtual_samples(ups, virtual))
        return Global(header, {**state.means, **pooled_means(ups)})

    return nets, loop.rounds(start, Global(start.shared["header"], {}), client, server).header


def pull(f: Tensor, y: Tensor, means: OfClass) -> Tensor:
    """Return the mean over the batch of the distances to the class means; 0 for classes without a mean."""
    mean, counted = loop.known(means, y, f.shape[1])
    return loop.masked_mean(((f - mean).square().sum(1) + 1e-12).sqrt(), counted)


def pooled_means(ups: dict[int, Samples]) -> OfClass:
    """Return each class's mean over all samples of the participants (Eq. 10)."""
    return loop.class_means(torch.cat([f for f, _ in ups.values()]), torch.cat([y for _, y in ups.values()]))


def virtual_samples(ups: dict[int, Samples], count: int) -> Samples:
    """Draw from each class's Gaussian, whose covariance is that of all samples of the participants (Eq. 11)."""
    f, y = torch.cat([f for f, _ in ups.values()]), torch.cat([y for _, y in ups.values()])
    rng, drawn, labels = torch.Generator().manual_seed(0), [], []
    for c, mean in loop.class_means(f, y).items():
        apart = f[y == c] - mean
        value, vector = torch.linalg.eigh(apart.T @ apart / max(1, len(apart) - 1))
        noise = torch.randn(round(count * len(apart) / len(y)), len(mean), generator=rng).double()
        drawn.append(mean + noise * value.clamp(min=0).sqrt() @ vector.T)
        labels.append(torch.full((len(noise),), c))
    return torch.cat(drawn), torch.cat(labels)


def refitted(header: Weights, samples: Samples, lr: float = 1.0, epochs: int = 20) -> Weights:
    """Train the header on all virtual samples at once (Eq. 12)."""
    f, y = samples
    for _ in range(epochs):
        error = (loop.header(header, f).softmax(1) - torch.nn.functional.one_hot(y, CLASSES)) / len(y)
        weight, bias = header["header.weight"] - lr * error.T @ f, header["header.bias"] - lr * error.sum(0)
        header = {"header.weight": weight, "header.bias": bias}
    return header
