"""HKS: each sample is taught by clusters of samples with similar logits that contain it, from fine to coarse.

Tam, Li, Abdelmoniem. Hierarchical Knowledge Structuring for Effective Federated Learning in Heterogeneous
Environments, 2025. https://arxiv.org/abs/2504.03505
Clients send the logits of their own training samples. The server clusters the samples of all clients bottom-up into a
tree. The mean logits of one of the clusters that contain a sample, or of all of them, are its teacher in the next local
training.

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
    """What each of a client's samples is taught, in data order."""

    # The mean logits of the sample's cluster; with `all`, the mean of the distributions of all clusters of the sample.
    teacher_NC: Tensor


@message
class Logits:
    """The logits of a client's samples, in data order."""

    logits_NC: Tensor


@dataclass
class Knowledge:
    """The server's state: logits and teachers for every client that has sent logits."""

    logits: dict[ClientId, Tensor] = field(default_factory=dict)  # client -> its latest logits [N, C]
    teachers: dict[ClientId, Tensor] = field(default_factory=dict)  # client -> its teachers [N, C]


@dataclass(frozen=True)
class HKS(Algorithm[Teachers, Logits, Knowledge]):
    """Distillation by a tree of clusters, made from the logits of all clients' samples."""

    paper: ClassVar[str] = "Tam, Li, Abdelmoniem, 2025, https://arxiv.org/abs/2504.03505"
    stale_uploads = True
    state_of_samples: ClassVar[bool] = True

    granularity: Literal["top", "middle", "bottom", "all"] = "all"
    """Which of the clusters that contain a sample teach it. `top`: the last cluster, when C clusters are left.
    `middle`: the cluster half-way up. `bottom`: the first cluster. `all`: all of these clusters, with equal weights."""
    alpha: NonNegative = 1.5
    """Weight of the distillation loss, added to the classification loss."""
    temperature: Positive = 3.0
    """Temperature T of teachers' and students' softmax. The paper prints no value; FedCache's code uses 3."""
    square_temperature: bool = False
    """Multiply the distillation loss by T^2, so that gradients do not shrink with T, as in FedCache's code. The paper's
    formula has no such factor."""
    warmup: WarmupRounds = 10
    """Number of rounds of plain local training. Clients first send logits at the end of the last of them."""
    warmup_extra: bool = False
    """Add the warm-up to the scenario's rounds: in its first round, a client also trains for the rounds of the
    warm-up."""
    literal_alg1: bool = False
    """Send the first logits one round later, so that the first round after the warm-up also has no teachers. Cannot be
    combined with `warmup_extra`, which has no separate rounds of warm-up."""
    logits: Literal["training", "eval_pass"] = "training"
    """The logits to send: those of the training steps in the last epoch, or those of a pass in eval mode after it."""
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    """Linkage of the clustering, which decides the next two clusters to merge; see `memory_gb`."""
    space: Literal["logits", "softmax"] = "logits"
    """What is clustered: logits, or softmax(logits / T), which removes differences in scale between architectures."""
    middle: Literal["path", "cut"] = "path"
    """Meaning of half-way up in `granularity: middle`. `path`: half-way in the list of clusters that contain a sample.
    `cut`: the cluster when sqrt(N C) clusters are left."""
    leaf: bool = False
    """Let the list of clusters of a sample begin with the sample itself. Then `bottom` is the sample's own last logits,
    and `all` and `middle: path` include them; `top` and `middle: cut` do not change."""
    memory_gb: Positive = 2.0
    """GB of the server's memory for the distances of all pairs, which SciPy's clustering keeps. If they need more,
    `ward` is computed without them, with the same tree (except for the order of equal distances), and other linkages
    are refused."""

    def check(self, task: Task) -> None:
        if self.literal_alg1 and self.warmup_extra:
            raise ValueError("literal_alg1: true cannot be combined with warmup_extra: true; set one of them to false")

    # -- server: before round 1 ----------------------------------------------------------------------
    def server_start(self, server: Server[Knowledge], registrations: Mapping[ClientId, Any]) -> Knowledge:
        samples = sum(server.num_samples.values())
        gb = distances_gb(samples)
        if self.linkage != "ward" and gb > self.memory_gb:
            raise ScenarioError(
                f"algorithm.linkage: {self.linkage} needs {gb:.1f} GB for the distances between {samples} samples, but "
                f"algorithm.memory_gb is {self.memory_gb:g}; set algorithm.linkage to ward or raise algorithm.memory_gb"
            )
        return Knowledge()

    # -- every round ---------------------------------------------------------------------------------
    def server_send(self, server: Server[Knowledge], to: ClientId) -> Teachers | None:
        teacher_NC = server.state.teachers.get(to)
        return None if teacher_NC is None else Teachers(teacher_NC)

    def client_update(self, client: Client, down: Teachers | None) -> Logits | None:
        epochs = client.local.epochs
        # down is None in the client's first round, because it has no teachers yet
        if self.warmup_extra and down is None:
            epochs *= 1 + self.warmup
        given = None if down is None or not self.alpha else self.distribution(down.teacher_NC)
        row_NC = client.fit(self.loss, given, epochs=epochs)
        if client.t < self.first_upload:
            return None
        return Logits(client.complete(None if self.logits == "eval_pass" else row_NC, client.net))

    def loss(self, net: Any, batch: Batch, given: Tensor | None) -> tuple[Tensor, Tensor]:
        """CE + alpha tau KL(teacher || softmax(z / T)), and the logits z. given: teachers' distributions [N, C].

        With `all`, the paper averages KL(q_l || p) over the clusters l. This equals KL(q || p), where q is the mean of
        the q_l, up to a term without p. So the gradients are the same, and only q is sent.
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
        known = sorted(state.logits)  # includes clients that did not take part in this round
        logits_NC = torch.cat([state.logits[k] for k in known])
        tree = self.tree(logits_NC, server.task.num_classes)
        server.log("path_length", float(tree.length_N.mean()))
        teacher_NC = torch.from_numpy(self.teachers(logits_NC.double().cpu().numpy(), tree)).to(logits_NC)
        sizes = [len(state.logits[k]) for k in known]
        state.teachers = dict(zip(known, teacher_NC.split(sizes), strict=True))

    def exposed(self, client: Client, up: Logits) -> OutputOf:
        return OutputOf(client.net, up.logits_NC)

    # -- the parts -----------------------------------------------------------------------------------
    @property
    def first_upload(self) -> int:
        """The first round in which clients send logits."""
        return 1 if self.warmup_extra else max(1, self.warmup + self.literal_alg1)

    def distribution(self, teacher_NC: Tensor) -> Tensor:
        """Convert the teachers of a message to distributions [N, C]."""
        return teacher_NC if self.granularity == "all" else (teacher_NC / self.temperature).softmax(1)

    def tree(self, logits_NC: Tensor, num_classes: int) -> "Tree":
        """Cluster samples by their logits until `num_classes` clusters are left."""
        point_NC = logits_NC.double()
        if self.space == "softmax":
            point_NC = (point_NC / self.temperature).softmax(1)
        # If the distances do not fit, the linkage is Ward's: `server_start` refuses the others.
        fits = distances_gb(len(point_NC)) <= self.memory_gb
        points = point_NC.cpu().numpy()
        merges = _scipy_linkage(points, self.linkage) if fits else ward(points)  # Eq. A
        return Tree.of(merges, num_classes)

    def teachers(self, logits_NC: NDArray[np.float64], tree: "Tree") -> NDArray[np.float64]:
        """Return the teacher of each sample, [N, C]. A sample that is in no cluster is taught by its own logits."""
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
    """A tree of clusters of samples. Nodes 0 to N-1 are the samples; each cluster follows its parts."""

    parent_V: NDArray[np.int64]  # parent of each node; -1 at the top
    # number of clusters from the top to the node, including the node; 0 for a sample at the top
    depth_V: NDArray[np.int64]
    num_samples: int

    @classmethod
    def of(cls, linkage: NDArray[np.float64], num_clusters: int) -> "Tree":
        """Build the tree from SciPy's linkage matrix. It ends when `num_clusters` are left."""
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
        """The number of clusters that contain each sample."""
        return self.depth_V[: self.num_samples]

    def ancestors(self, steps_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each sample, the node `steps_N` steps above it."""
        node_N = np.arange(self.num_samples)
        for step in range(int(steps_N.max())):
            (going,) = np.nonzero(steps_N > step)
            node_N[going] = self.parent_V[node_N[going]]
        return node_N

    def cut(self, num_clusters: int) -> NDArray[np.int64]:
        """Return each sample's node when `num_clusters` are left, or when the tree ends, if that is earlier."""
        left = int((self.parent_V < 0).sum())
        # later clusters do not exist yet at this point
        end = len(self.parent_V) - max(0, min(num_clusters, self.num_samples) - left)
        node_N = np.arange(self.num_samples)
        while True:
            above_N = self.parent_V[node_N]
            going_N = (above_N >= 0) & (above_N < end)
            if not going_N.any():
                return node_N
            node_N = np.where(going_N, above_N, node_N)

    def means(self, value_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean over each node's samples, [V, C]."""
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
        """Return the mean over the clusters that contain each sample, [N, C]; for a sample in none, its own value.

        leaf: whether the sample itself counts as one of its clusters.
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
    """Return the GB that SciPy needs for the distances of all pairs: 8 bytes each, twice because it copies them."""
    return 2 * 8 * num_samples * (num_samples - 1) / 2 / 1e9


def _softmax(value_VC: NDArray[np.float64]) -> NDArray[np.float64]:
    return torch.from_numpy(value_VC).softmax(1).numpy()


def _scipy_linkage(point_NC: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    from scipy.cluster import hierarchy  # imported here, because clients import this file too and do not need SciPy

    return hierarchy.linkage(point_NC, method) if len(point_NC) > 1 else np.zeros((0, 4))
