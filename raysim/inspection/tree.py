"""Clusters around one sample, from its first merge to the top of the tree (HKS, Fig. 3).

Shapes: N samples that the server clusters, C classes, V nodes of the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.common.errors import ScenarioError
from raysim.common.names import picture, plain
from raysim.core.algorithm import ClientId, Server
from raysim.inspection.pictures import make_figure, pixels, show_image
from raysim.report.figures import picture_file, save_picture
from raysim.report.units import plural
from raysim.runs.opened import OpenedRun, Round

SHOWN = 10
"""Images per row of the figure."""
NAMED = 3
"""Classes to name per cluster."""


class ParentsOfNodes(Protocol):
    """A tree of clusters."""

    @property
    def parent_V(self) -> NDArray[np.int64]:
        """The parent cluster of each node, with a greater index than the node; -1 for none. Samples come first."""


@runtime_checkable
class ClustersLogits(Protocol):
    """A method whose server clusters samples by their logits. `raysim tree` works for every method of this protocol."""

    def clustered_logits(self, server: Server[Any]) -> Mapping[ClientId, Tensor]:
        """Client -> logits [N, C] of its samples, in data order, for the clients whose logits the server has."""

    def tree(self, logits_NC: Tensor, num_classes: int) -> ParentsOfNodes:
        """Cluster samples by their logits."""


@dataclass(frozen=True)
class Cluster:
    """A cluster around the sample. Samples are positions in the data set, nearest logits first."""

    samples: NDArray[np.int64]  # all samples of the cluster, the sample itself first
    joining: NDArray[np.int64]  # the samples that the next smaller cluster does not have
    classes: tuple[tuple[str, int], ...]  # (class, number of samples), most frequent first
    clients: int  # number of clients with samples in the cluster
    predicted: str  # class of the mean logits, which teach the sample

    @property
    def named(self) -> str:
        """The most frequent classes, such as "12 x rose, 3 x tulip, 4 others"."""
        shown = [f"{count} x {name}" for name, count in self.classes[:NAMED]]
        rest = sum(count for _, count in self.classes[NAMED:])
        return ", ".join([*shown, plural(rest, "other")] if rest else shown)


@dataclass(frozen=True)
class SampleTree:
    """The clusters around a sample, the smallest first."""

    run: OpenedRun
    round: int  # the round after which the server clustered
    client: ClientId
    sample: int
    label: str
    clusters: tuple[Cluster, ...]


def sample_tree(run: Path | str, sample: int, round: Round = None) -> SampleTree:
    """Return the clusters around a training sample.

    sample: its position in the data set, as in `partition.parquet`. round: the clusters are those after this round;
    "best_val": the best by validation; default: the latest. Raises `ScenarioError` if the run's method does
    not cluster logits, or the server has no logits of that sample.
    """
    opened = OpenedRun.of(run)
    method: Any = opened.spec.algorithm
    if not isinstance(method, ClustersLogits):
        raise ScenarioError(
            f"{opened.folder} is a run of {opened.method}, which has no tree of clusters; give a run of a method with "
            "`clustered_logits` and `tree`, such as HKS"
        )
    checkpoint = opened.checkpoint(round)
    with opened.backend((), checkpoint) as backend:
        logits = method.clustered_logits(backend.server.server)
    known = sorted(logits)
    if not known:
        raise ScenarioError(
            f"{opened.folder}: the server has no logits after round {checkpoint.round}, for example because clients "
            "send none during warm-up; give a later --round, or if the run has no later round, continue it with "
            "`raysim resume`"
        )
    place_N = np.concatenate([opened.spec.train.of(k) for k in known])
    owner_N = np.repeat(known, [len(logits[k]) for k in known])
    if sample not in place_N:
        near = int(place_N[np.abs(place_N - sample).argmin()])
        raise ScenarioError(
            f"--sample: {sample} given, but the server has no logits of this sample; choose a training sample of a "
            f"participant, such as {near} (partition.parquet lists the samples of each client)"
        )
    target = int((place_N == sample).argmax())
    logits_NC = torch.cat([logits[k] for k in known])
    tree = method.tree(logits_NC, opened.spec.num_classes)
    level_N = path_levels(tree.parent_V, len(place_N), target)
    distance_N = (logits_NC.double() - logits_NC[target].double()).square().sum(1).numpy()
    distance_N[target] = -1  # before samples with equal logits
    names = [*map(plain, opened.assembly.data.class_names)]
    clusters = []
    for level in range(level_N.max() + 1):
        (inside,) = np.nonzero((level_N >= 0) & (level_N <= level))
        inside = inside[distance_N[inside].argsort(kind="stable")]
        labels = Counter(names[y] for y in opened.spec.labels[place_N[inside]].tolist())
        joining = inside[level_N[inside] == level]
        predicted = names[int(logits_NC[inside].double().mean(0).argmax())]
        clusters.append(
            Cluster(place_N[inside], place_N[joining], tuple(labels.most_common()), len({*owner_N[inside]}), predicted)
        )
    label = names[int(opened.spec.labels[sample])]
    return SampleTree(opened, checkpoint.round, int(owner_N[target]), sample, label, tuple(clusters))


def path_levels(parent_V: NDArray[np.int64], num_samples: int, target: int) -> NDArray[np.int64]:
    """For each sample, the level of the smallest cluster around `target` that contains it, from 0; -1 if none does.

    parent_V: the parent cluster of each node, with a greater index than the node; -1 for none.
    """
    level_V = np.full(len(parent_V), -1)
    node, level = parent_V[target], 0
    while node >= 0:
        level_V[node] = level
        node, level = parent_V[node], level + 1
    for node in range(len(parent_V) - 1, -1, -1):
        if level_V[node] < 0 and parent_V[node] >= 0:
            level_V[node] = level_V[parent_V[node]]
    return level_V[:num_samples]


def draw_tree(tree: SampleTree, output: Path | str) -> Path:
    """Draw the sample, and below it a row per cluster with the samples that join it there. Returns the file."""
    file = picture_file(output)
    tree.run.check_images()
    image_MHWC, labels, names = tree.run.raw_M, tree.run.spec.labels, tree.run.assembly.data.class_names
    rows = len(tree.clusters) + 1
    figure, axes = make_figure(rows, SHOWN, 1.0 * SHOWN + 3.4, 1.15 * rows + 0.4)
    for one in axes.flat:
        one.set_axis_off()
    texts = [f"sample {tree.sample}\nof client {tree.client}"]
    texts += [
        f"cluster {level}: {len(cluster.samples)} samples\nof {plural(cluster.clients, 'client')}\n{cluster.named}"
        for level, cluster in enumerate(tree.clusters, 1)
    ]
    joining = [np.array([tree.sample])]
    joining += [cluster.joining[cluster.joining != tree.sample] for cluster in tree.clusters]
    for row, (text, places) in enumerate(zip(map(picture, texts), joining, strict=True)):
        axes[row, 0].text(-0.25, 0.5, text, transform=axes[row, 0].transAxes, ha="right", va="center", fontsize=7)
        for one, place in zip(axes[row], places.tolist(), strict=False):
            show_image(one, pixels(image_MHWC[place]), names[int(labels[place])])
    title = (
        f"{tree.run.name}, after round {tree.round}: samples that each level adds to the cluster of the chosen sample"
    )
    figure.suptitle(picture(title, 200), fontsize=9)
    return save_picture(figure, file)
