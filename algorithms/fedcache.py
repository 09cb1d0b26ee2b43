"""FedCache: each sample is taught by the latest logits of the most similar samples, from all clients.

Wu, Sun, Wang, Liu, Xu, Wang, Jiang, Gao, Lu. FedCache: A Knowledge Cache-driven Federated Learning Architecture for
Personalized Edge Intelligence. IEEE Transactions on Mobile Computing, 2024. https://arxiv.org/abs/2308.07816
Before round 1, every client sends the label of each of its images and a hash, computed by a frozen encoder. The server
finds each sample's R nearest neighbours with the same label, from all clients, and keeps the latest logits of every
sample. A participant gets the logits of its samples' neighbours, distils from their mean, and sends its own logits.

Shapes: N samples (of one client, or at the server of all), C classes, B batch, R neighbours, h width of a hash,
M samples of one class, U samples without logits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.core import Algorithm, Client, ClientId, Count, NonNegative, OutputOf, Positive, Server, Task, message
from raysim.core.ops import cross_entropy, kl

BLOCK = 1 << 22
"""Number of similarities computed at once: they take 32 MB, and their ranks another 32 MB."""


@message
class Hashes:
    """Hash and label of each of a client's samples, in data order. Sent only once."""

    hash_Nh: Tensor
    label_N: Tensor  # int32


@message
class Means:
    """For each of a client's samples, in data order: the mean of its neighbours' logits."""

    logits_NC: Tensor
    known_N: Tensor | None  # bool: whether the sample has a teacher; None: all have one


@message
class Neighbours:
    """For each of a client's samples: the logits of its neighbours, nearest first."""

    logits_NRC: Tensor
    known_NR: Tensor | None  # bool: whether the neighbour counts; None: all count


@message
class Logits:
    """For each of a client's samples, in data order: its logits in the last training step that contained it."""

    logits_NC: Tensor
    unseen_U: Tensor | None  # int32: samples that were in no training step, with zeros as logits; None: no such samples


@dataclass
class Cache:
    """The server's state: neighbours and latest logits of every sample, one client after another."""

    span: dict[ClientId, tuple[int, int]]  # client -> (first position of its samples, one past the last)
    near_NR: Tensor  # int32: nearest samples with the same label, nearest first; -1: fewer neighbours
    logits_NC: Tensor  # the latest logits; zeros if there are none
    written_N: Tensor  # bool: whether the sample has logits
    hash_width: int


@dataclass(frozen=True)
class FedCache(Algorithm[Means | Neighbours, Logits, Cache]):
    """Each sample learns from the cached logits of its nearest neighbours with the same label."""

    paper: ClassVar[str] = "Wu et al., IEEE TMC 2024, https://arxiv.org/abs/2308.07816"
    stale_uploads = True
    state_of_samples: ClassVar[bool] = True

    neighbours: Count = 16
    """R, the number of nearest samples with the same label that teach a sample; fewer if there are not so many."""
    alpha: NonNegative = 1.5
    """Weight of the distillation loss, added to the classification loss; 0 trains exactly as `standalone` does."""
    temperature: Positive = 3.0
    """Temperature T of teachers' and students' softmax; the distillation loss is multiplied by T^2."""
    encoder: Literal["mobilenet_v3_small", "pixels"] = "pixels"
    """The encoder of the hashes. `mobilenet_v3_small`: MobileNetV3-small with ImageNet weights (the paper, h = 576);
    runs do not download it, so its file must be in torch's hub cache. `pixels`: the image minus its mean, which needs
    no file, and hides nothing from the server."""
    cold: Literal["zeros", "wait"] = "zeros"
    """Teachers while samples have no logits. `zeros`: zero logits, which teach the uniform distribution (the released
    code). `wait`: a sample has no teacher until all its neighbours have logits."""
    server_averages: bool = True
    """Send the mean of the neighbours' logits, N * C numbers. `false`: send the logits of all R neighbours, R times as
    many numbers, which the client averages (the paper). Training is the same in both cases."""

    def check(self, task: Task) -> None:
        task.encoder(self.encoder)  # raises ValueError if its weights are missing

    # -- before round 1 ------------------------------------------------------------------------------
    def client_register(self, client: Client) -> Hashes:
        return Hashes(client.outputs(client.task.encoder(self.encoder)), client.data.y.int())

    def server_start(self, server: Server[Cache], registrations: Mapping[ClientId, Hashes]) -> Cache:
        span, end = {}, 0
        for k, registration in registrations.items():
            span[k] = end, end + len(registration.label_N)
            end = span[k][1]
        hashes = [registration.hash_Nh for registration in registrations.values()]
        near_NR = nearest_of_label(
            hashes, [registration.label_N for registration in registrations.values()], self.neighbours
        )
        logits_NC = torch.zeros(end, server.task.num_classes)
        return Cache(span, near_NR, logits_NC, torch.zeros(end, dtype=torch.bool), hashes[0].shape[1])

    # -- every round ---------------------------------------------------------------------------------
    def server_send(self, server: Server[Cache], to: ClientId) -> Means | Neighbours | None:
        cache = server.state
        near_NR = cache.near_NR[slice(*cache.span[to])].long()
        known_NR = near_NR >= 0
        if self.cold == "wait":
            known_NR &= (cache.written_N[near_NR] | ~known_NR).all(1, keepdim=True)
        if not bool(known_NR.any()):
            return None
        if not self.server_averages:
            logits_NRC = cache.logits_NC[near_NR] * known_NR[:, :, None]
            return Neighbours(logits_NRC, None if bool(known_NR.all()) else known_NR)
        # One neighbour of all samples at a time, because R * N * C numbers may take gigabytes.
        return mean_of((cache.logits_NC[near_N] for near_N in near_NR.T), known_NR)

    def client_update(self, client: Client, down: Means | Neighbours | None) -> Logits | None:
        if isinstance(down, Neighbours):
            known_NR = down.known_NR
            if known_NR is None:
                known_NR = torch.ones_like(down.logits_NRC[:, :, 0], dtype=torch.bool)
            down = mean_of(down.logits_NRC.unbind(1), known_NR)
        row_NC = client.fit(self.loss, down if self.alpha else None)
        if row_NC is None:  # None if there is a single sample, on which BatchNorm cannot train
            return None
        unseen_U = row_NC.isnan().any(1).nonzero().flatten()
        # If the loss is not finite, training diverged. Then send logits that are not finite, which the engine refuses.
        if not len(unseen_U) or not isfinite(client.stats.loss_sum):
            return Logits(row_NC, None)
        return Logits(row_NC.index_fill(0, unseen_U, 0.0), unseen_U.int())

    def loss(self, net: Any, batch: Any, given: Means | None) -> tuple[Tensor, Tensor]:
        """CE + alpha T^2 KL(softmax(teacher / T) || softmax(z / T)); also returns the logits z.

        A sample without a teacher adds 0 to the second term.
        """
        logits_BC = net(batch.x)
        ce = cross_entropy(lambda _: logits_BC, batch, None)
        if given is None:
            return ce, logits_BC
        kl_B = kl(logits_BC, given.logits_NC[batch.index], self.temperature)
        if given.known_N is not None:
            kl_B = kl_B * given.known_N[batch.index]
        # Eq. C
        return ce + self.alpha * self.temperature**2 * batch.mean(kl_B), logits_BC

    def server_update(self, server: Server[Cache], ups: Mapping[ClientId, Logits]) -> None:
        cache = server.state
        for k, up in ups.items():
            seen_N = torch.ones(len(up.logits_NC), dtype=torch.bool)
            if up.unseen_U is not None:
                seen_N[up.unseen_U.long()] = False
            at_N = slice(*cache.span[k])
            # Eq. D
            cache.logits_NC[at_N][seen_N] = up.logits_NC[seen_N]
            cache.written_N[at_N][seen_N] = True
        server.log("hash_width", cache.hash_width)
        server.log("cache_filled", float(cache.written_N.double().mean()))

    def exposed(self, client: Client, up: Logits) -> OutputOf:
        return OutputOf(client.net, up.logits_NC)


def mean_of(logits: Iterable[Tensor], known_NR: Tensor) -> Means:
    """Average over neighbours. `logits` yields, for r = 1 to R, the logits [N, C] of each sample's r-th neighbour.

    They are added in order, so that server and clients compute the same bits. A sample without known neighbours gets
    zeros, and is not known.
    """
    total_NC: Tensor | None = None
    for logits_NC, known_N in zip(logits, known_NR.unbind(1), strict=True):
        term_NC = logits_NC * known_N[:, None]
        total_NC = term_NC if total_NC is None else total_NC + term_NC
    assert total_NC is not None
    count_N = known_NR.sum(1)
    known_N = count_N > 0
    # Eq. B
    return Means(total_NC / count_N.clamp(min=1)[:, None], None if bool(known_N.all()) else known_N)


def nearest_of_label(hashes: Sequence[Tensor], labels: Sequence[Tensor], count: int) -> Tensor:
    """For each sample, find the `count` nearest other samples of all clients with the same label: int32 [N, count].

    Samples are numbered client after client; -1 stands for missing neighbours.
    """
    label_N = torch.cat([*labels])
    near_NR = torch.full((len(label_N), count), -1, dtype=torch.int32)
    for label in label_N.unique().tolist():
        at_M = (label_N == label).nonzero().flatten()
        near_MR = nearest(
            torch.cat([hash_Nh[own_N == label] for hash_Nh, own_N in zip(hashes, labels, strict=True)]), count
        )
        near_NR[at_M] = torch.where(near_MR >= 0, at_M[near_MR], -1).int()
    return near_NR


def nearest(hash_Mh: Tensor, count: int) -> Tensor:
    """For each row, find the `count` other rows with the greatest cosine, nearest first: int64 [M, count].

    -1 stands for missing neighbours. The search is exact, in float64. The row itself is excluded by its index, so a
    duplicate counts as a neighbour. If cosines agree to 12 digits, the earlier row is nearer. A row of zeros has cosine
    0 to all rows.
    """
    size = len(hash_Mh)
    near_MR = torch.full((size, count), -1)
    found = min(count, size - 1)
    if not found:
        return near_MR
    # Eq. A
    unit_Mh = F.normalize(hash_Mh.double(), dim=1)
    earlier_M = torch.arange(size).flip(0)
    for own_B in torch.arange(size).split(max(1, BLOCK // size)):
        cosine_BM = unit_Mh[own_B] @ unit_Mh.T
        # Different integers within a row make the result independent of how the sort orders ties.
        rank_BM = (cosine_BM * 2**40).round_().long().mul_(size).add_(earlier_M)
        rank_BM[torch.arange(len(own_B)), own_B] = torch.iinfo(torch.int64).min
        near_MR[own_B, :found] = rank_BM.topk(found, dim=1).indices
    return near_MR
