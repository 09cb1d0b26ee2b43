"""HKS: each sample is taught by the groups of similar logits, from fine to coarse, that it falls into.

Tam, Li, Abdelmoniem. Hierarchical Knowledge Structuring for Effective Federated Learning in Heterogeneous
Environments, 2025. https://arxiv.org/abs/2504.03505
Clients send the logits of their own training samples. The server clusters all of them from the bottom up, into a tree;
the mean logits of one of the clusters around a sample, or of all of them, are its teacher in the next local epoch.

Shapes: N samples (of one client, or at the server of all), C classes, B batch, V nodes of the tree (samples first, then
clusters).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    NonNegative,
    OutputOf,
    Positive,
    ScenarioError,
    Server,
    Task,
    WarmupRounds,
    message,
)
from raysim.core.ops import cross_entropy
from raysim.core.ward import ward


@message
class Teachers:
    """The teacher of each of a client's samples, in data order."""

    teacher_NC: Tensor  # mean logits of one cluster each; for `all` the mean of the distributions of all its clusters


@message
class Logits:
    """The logits of a client's samples, in data order."""

    logits_NC: Tensor


@dataclass
class Knowledge:
    """The server's knowledge of every client that ever sent logits."""

    logits: dict[ClientId, Tensor] = field(default_factory=dict)  # [N, C] each, the latest
    teachers: dict[ClientId, Tensor] = field(default_factory=dict)  # [N, C] each


@dataclass(frozen=True)
class HKS(Algorithm[Teachers, Logits, Knowledge]):
    """Distillation from a tree of clusters of all clients' per-sample logits."""

    paper: ClassVar[str] = "Tam, Li, Abdelmoniem, 2025, https://arxiv.org/abs/2504.03505"

    granularity: Literal["top", "middle", "bottom", "all"] = "all"
    """Which clusters around a sample teach it: the one when C clusters are left, the one half-way up, the first, or all
    of them alike."""
    alpha: NonNegative = 1.5
    """Weight of distillation beside the classification loss."""
    temperature: Positive = 3.0
    """T, by which teachers' and students' logits are divided. The paper prints no value; FedCache's code has 3."""
    square_temperature: bool = False
    """Multiply the distillation loss by T^2, as FedCache's code does, so that its gradients do not shrink with T. The
    paper's formula has no such factor."""
    warmup: WarmupRounds = 10
    """Rounds of plain local training; logits first go up at the end of the last one."""
    warmup_extra: bool = False
    """The warm-up comes on top of the scenario's rounds: in its first, a client trains for that many more."""
    literal_alg1: bool = False
    """Logits first go up one round later, so that the first round after the warm-up has no teachers either. Not
    together with `warmup_extra`, which has no rounds of warm-up."""
    logits: Literal["training", "eval_pass"] = "training"
    """Which logits go up: those of the last epoch's training steps, or those of a pass in eval mode after it."""
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    """Which two clusters merge next; see `memory_gb`."""
    space: Literal["logits", "softmax"] = "logits"
    """Cluster the logits, or softmax(logits / T), which hides that architectures differ in scale."""
    middle: Literal["path", "cut"] = "path"
    """Half-way up: in the list of clusters around each sample, or where sqrt(N C) clusters are left."""
    leaf: bool = False
    """The list of clusters around a sample begins with the sample itself. So `bottom` is its own last logits, `all` has
    them beside the clusters, and `middle: path` counts them; `top` and `middle: cut` are what they are without."""
    memory_gb: Positive = 2.0
    """What the server may spend on the distances of all pairs, which SciPy's clustering keeps. Above it `ward` is
    computed without them, to the same tree (but for the order of equal distances); other linkages are refused."""

    def check(self, task: Task) -> None:
        if self.literal_alg1 and self.warmup_extra:
            raise ValueError("literal_alg1: true given with warmup_extra: true; allowed: one of the two")

    # -- server: before round 1 ----------------------------------------------------------------------
    def server_start(self, server: Server[Knowledge], registrations: Mapping[ClientId, Any]) -> Knowledge:
        samples = sum(server.num_samples.values())
        gb = distances_gb(samples)
        if self.linkage != "ward" and gb > self.memory_gb:
            raise ScenarioError(
                f"algorithm.linkage: {self.linkage} given, which needs {gb:.1f} GB for the distances of {samples} "
                f"samples; allowed: ward, or a memory_gb (now {self.memory_gb:g}) of at least that"
            )
        return Knowledge()

    # -- every round ---------------------------------------------------------------------------------
    def server_send(self, server: Server[Knowledge], to: ClientId) -> Teachers | None:
        teacher_NC = server.state.teachers.get(to)
        return None if teacher_NC is None else Teachers(teacher_NC)

    def client_update(self, client: Client, down: Teachers | None) -> Logits | None:
        epochs = client.local.epochs
        if self.warmup_extra and down is None:  # its first round: it sent logits at the end of all others
            epochs *= 1 + self.warmup
        given = None if down is None or not self.alpha else self.distribution(down.teacher_NC)
        row_NC = client.fit(self.loss, given, epochs=epochs)
        if client.t < self.first_upload:
            return None
        return Logits(client.complete(None if self.logits == "eval_pass" else row_NC, client.net))

    def loss(self, net: Any, batch: Batch, given: Tensor | None) -> tuple[Tensor, Tensor]:
        """CE + alpha tau KL(teacher || softmax(z / T)), and the logits z. given: teachers' distributions [N, C].

        For `all` the paper averages KL(q_l || p) over the clusters l. That is KL(q || p) with q the mean of the q_l
        but for a term without p: the gradients are the same, and only q travels.
        """
        logits_BC = net(batch.x)
        ce = cross_entropy(lambda _: logits_BC, batch, None)
        if given is None:
            return ce, logits_BC
        teacher_BC = given[batch.index]
        log_p_BC = F.log_softmax(logits_BC / self.temperature, 1)
        kl_B = (torch.xlogy(teacher_BC, teacher_BC) - teacher_BC * log_p_BC).sum(1)
        tau = self.temperature**2 if self.square_temperature else 1.0
        # Eq. E
        return ce + self.alpha * tau * batch.mean(kl_B), logits_BC

    def server_update(self, server: Server[Knowledge], ups: Mapping[ClientId, Logits]) -> None:
        state = server.state
        state.logits.update({k: up.logits_NC for k, up in ups.items()})
        known = sorted(state.logits)  # absent clients, too: their last logits stay
        logits_NC = torch.cat([state.logits[k] for k in known])
        tree = self.tree(logits_NC, server.task.num_classes)
        server.log("path_length", float(tree.length_N.mean()))
        teacher_NC = torch.from_numpy(self.teachers(logits_NC.double().cpu().numpy(), tree)).to(logits_NC)
        sizes = [len(state.logits[k]) for k in known]
        state.teachers = dict(zip(known, teacher_NC.split(sizes), strict=True))

    def exposed(self, client: Client, up: Logits) -> OutputOf:
        return OutputOf(client.net, up.logits_NC)

    def clustered_logits(self, server: Server[Knowledge]) -> Mapping[ClientId, Tensor]:
        """For `raysim tree`: the latest logits of each client's samples, [N, C]."""
        return server.state.logits

    # -- the parts -----------------------------------------------------------------------------------
    @property
    def first_upload(self) -> int:
        """The first round, from 1 on, after which logits go up."""
        return 1 if self.warmup_extra else max(1, self.warmup + self.literal_alg1)

    def distribution(self, teacher_NC: Tensor) -> Tensor:
        """Teachers as distributions, from what was sent."""
        return teacher_NC if self.granularity == "all" else (teacher_NC / self.temperature).softmax(1)

    def tree(self, logits_NC: Tensor, num_classes: int) -> "Tree":
        """The clusters of these samples until `num_classes` are left."""
        point_NC = logits_NC.double()
        if self.space == "softmax":
            point_NC = (point_NC / self.temperature).softmax(1)
        # `server_start` refuses other linkages than Ward's where the distances do not fit.
        fits = distances_gb(len(point_NC)) <= self.memory_gb
        points = point_NC.cpu().numpy()
        merges = _scipy_linkage(points, self.linkage) if fits else ward(points)  # Eq. A
        return Tree.of(merges, num_classes)

    def teachers(self, logits_NC: NDArray[np.float64], tree: "Tree") -> NDArray[np.float64]:
        """What to send for each sample, [N, C]. One that is still alone where the tree ends is taught by itself."""
        if self.granularity == "all":
            return tree.path_means(_softmax(tree.means(logits_NC) / self.temperature), self.leaf)
        # Eq. C
        if self.granularity == "bottom":
            node_N = np.arange(len(logits_NC)) if self.leaf else tree.ancestors(np.minimum(tree.length_N, 1))
        elif self.granularity == "top":
            node_N = tree.ancestors(tree.length_N)
        elif self.middle == "path":
            above_N = (tree.length_N + 1) // 2 if self.leaf else tree.length_N // 2 + 1
            node_N = tree.ancestors(np.where(tree.length_N > 0, above_N, 0))
        else:
            node_N = tree.cut(round(sqrt(logits_NC.size)))
        return tree.means(logits_NC)[node_N]


@dataclass(frozen=True)
class Tree:
    """Clusters of samples until few are left. Nodes 0 to N-1 are the samples; each cluster comes after its parts."""

    parent_V: NDArray[np.int64]  # -1: a cluster (or lone sample) of the top
    depth_V: NDArray[np.int64]  # clusters above and including: 1 at the top, 0 for a sample alone at the top
    num_samples: int

    @classmethod
    def of(cls, linkage: NDArray[np.float64], num_clusters: int) -> "Tree":
        """From SciPy's matrix, cut where `num_clusters` are left."""
        num_samples = len(linkage) + 1
        merges = max(num_samples - num_clusters, 0)
        parent_V = np.full(num_samples + merges, -1, dtype=np.int64)
        parent_V[linkage[:merges, :2].astype(np.int64)] = num_samples + np.arange(merges)[:, None]
        parents, depths = parent_V.tolist(), [0] * len(parent_V)
        for node in range(len(parents) - 1, -1, -1):
            above = parents[node]
            depths[node] = int(node >= num_samples) + (depths[above] if above >= 0 else 0)
        return cls(parent_V, np.array(depths, dtype=np.int64), num_samples)

    @property
    def length_N(self) -> NDArray[np.int64]:
        """How many clusters are around each sample."""
        return self.depth_V[: self.num_samples]

    def ancestors(self, steps_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """The node that many steps above each sample."""
        node_N = np.arange(self.num_samples)
        for step in range(int(steps_N.max())):
            (going,) = np.nonzero(steps_N > step)
            node_N[going] = self.parent_V[node_N[going]]
        return node_N

    def cut(self, num_clusters: int) -> NDArray[np.int64]:
        """The cluster of each sample where this many are left (at least as many as the tree ends with)."""
        left = int((self.parent_V < 0).sum())
        end = len(self.parent_V) - max(0, min(num_clusters, self.num_samples) - left)  # clusters that are not yet made
        node_N = np.arange(self.num_samples)
        while True:
            above_N = self.parent_V[node_N]
            going_N = (above_N >= 0) & (above_N < end)
            if not going_N.any():
                return node_N
            node_N = np.where(going_N, above_N, node_N)

    def means(self, value_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean over each node's samples, [V, C]."""
        nodes = len(self.parent_V)
        sum_VC = np.zeros((nodes, value_NC.shape[1]))
        sum_VC[: self.num_samples] = value_NC
        count_V = np.zeros(nodes)
        count_V[: self.num_samples] = 1
        for node, above in enumerate(self.parent_V.tolist()):
            if above >= 0:
                sum_VC[above] += sum_VC[node]
                count_V[above] += count_V[node]
        # Eq. B
        return sum_VC / count_V[:, None]

    def path_means(self, value_VC: NDArray[np.float64], leaf: bool) -> NDArray[np.float64]:
        """The mean over the clusters around each sample, [N, C]; of a sample alone at the top, its own value.

        leaf: the sample itself counts as one of its clusters.
        """
        total_VC = value_VC.copy()
        if not leaf:
            total_VC[: self.num_samples][self.length_N > 0] = 0
        for node in range(len(self.parent_V) - 1, -1, -1):
            if self.parent_V[node] >= 0:
                total_VC[node] += total_VC[self.parent_V[node]]
        count_N = self.length_N + 1 if leaf else np.maximum(self.length_N, 1)
        # Eq. D
        return total_VC[: self.num_samples] / count_N[:, None]


def distances_gb(num_samples: int) -> float:
    """What SciPy needs for the distances of all pairs: 8 bytes each, and it works on a copy."""
    return 2 * 8 * num_samples * (num_samples - 1) / 2 / 1e9


def _softmax(value_VC: NDArray[np.float64]) -> NDArray[np.float64]:
    return torch.from_numpy(value_VC).softmax(1).numpy()


def _scipy_linkage(point_NC: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    from scipy.cluster import hierarchy  # here: clients import this file, too, and do not need it

    return hierarchy.linkage(point_NC, method) if len(point_NC) > 1 else np.zeros((0, 4))
