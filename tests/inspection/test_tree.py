"""HKS's clusters around a sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from raysim.algorithms.hks import HKS, Tree
from raysim.common.errors import ScenarioError
from raysim.inspection.tree import Cluster, draw_tree, path_levels, sample_tree
from raysim.runs.opened import OpenedRun
from raysim.runs.run import Run

Runs = Callable[..., Run]


def test_the_path_by_hand() -> None:
    """Logits 0, 1, 10, 12, 13 merge as {0, 1}, {12, 13}, {10, {12, 13}} until two clusters are left."""
    tree = HKS().tree(torch.tensor([[0.0], [1], [10], [12], [13]]), 2)
    assert path_levels(tree.parent_V, 5, 3).tolist() == [-1, -1, 1, 0, 0]
    assert path_levels(tree.parent_V, 5, 2).tolist() == [-1, -1, 0, 0, 0]
    assert path_levels(tree.parent_V, 5, 0).tolist() == [0, 0, -1, -1, -1]
    alone = Tree.of(np.zeros((0, 4)), 2)
    assert path_levels(alone.parent_V, 1, 0).tolist() == [-1]


def test_clusters_of_a_run(runs: Runs, tmp_path: Path) -> None:
    folder = runs("hks", "algorithm.warmup=1").folder
    run = OpenedRun.of(folder)
    took_part = set(runs("hks", "algorithm.warmup=1").clients.query("participated")["client"])
    client = min(took_part)
    sample = int(run.spec.train.of(client)[5])
    found = sample_tree(folder, sample)
    assert (found.client, found.round, found.label) == (client, 3, str(run.spec.labels[sample]))
    sizes = [len(cluster.samples) for cluster in found.clusters]
    assert sizes == sorted(set(sizes)) and sizes[0] >= 2
    held = {int(place) for k in took_part for place in run.spec.train.of(k)}
    below: set[int] = {sample}
    for cluster in found.clusters:
        inside = set(cluster.samples.tolist())
        assert cluster.samples[0] == sample and below < inside <= held
        assert set(cluster.joining.tolist()) | below == inside
        assert sum(count for _, count in cluster.classes) == len(inside)
        below = inside
    assert draw_tree(found, tmp_path / "tree.svg").read_text().startswith("<?xml")


def test_a_cluster_is_described_by_all_of_its_samples(runs: Runs) -> None:
    run = OpenedRun.of(runs("hks", "algorithm.warmup=1").folder)
    client = runs("hks", "algorithm.warmup=1").clients.query("participated")["client"].min()
    with run.backend((), run.checkpoint()) as backend:
        sent = run.spec.algorithm.clustered_logits(backend.server.server)
    of_sample = {int(at): (k, row_C) for k in sent for at, row_C in zip(run.spec.train.of(k), sent[k], strict=True)}
    for sample in run.spec.train.of(client)[:10].tolist():
        for cluster in sample_tree(run.folder, sample).clusters:
            inside = [of_sample[at] for at in cluster.samples.tolist()]
            assert cluster.clients == len({k for k, _ in inside})
            logits_NC = torch.stack([row_C for _, row_C in inside]).double()
            assert cluster.predicted == str(int(logits_NC.mean(0).argmax()))
            far_N = (logits_NC - logits_NC[0]).square().sum(1)  # Euclidean; the sample itself comes first
            assert cluster.samples[0] == sample and (far_N.diff() >= 0).all()


def test_classes_that_are_not_named_are_counted() -> None:
    """3 + 2 samples of the fourth and fifth class, not two classes."""
    none = np.zeros(0, np.int64)
    classes = (("a", 9), ("b", 8), ("c", 7), ("d", 3), ("e", 2))
    assert Cluster(none, none, classes, 1, "a").named == "9 x a, 8 x b, 7 x c, 5 others"


def test_a_method_of_a_user_has_a_tree(runs: Runs, tmp_path: Path) -> None:
    (file := tmp_path / "own_hks.py").write_text(
        "from dataclasses import dataclass\nfrom raysim.algorithms.hks import HKS\n"
        "@dataclass(frozen=True)\nclass Mine(HKS):\n    'HKS, changed.'\n"
    )
    one, other = (runs(name, "algorithm.warmup=1").folder for name in (str(file), "hks"))
    client = runs("hks", "algorithm.warmup=1").clients.query("participated")["client"].min()
    sample = int(OpenedRun.of(other).spec.train.of(client)[5])
    for mine, bundled in zip(sample_tree(one, sample).clusters, sample_tree(other, sample).clusters, strict=True):
        assert np.array_equal(mine.samples, bundled.samples)


def test_what_cannot_be_is_one_sentence(runs: Runs) -> None:
    with pytest.raises(
        ScenarioError, match=r"is a run of fedgh, which has no tree of clusters; give a run of a method"
    ):
        sample_tree(runs("fedgh", "rounds=1").folder, 0)
    folder = runs("hks", "algorithm.warmup=1").folder
    run = OpenedRun.of(folder)
    tested = int(run.spec.test.of(0)[0])
    with pytest.raises(
        ScenarioError, match=rf"^--sample: {tested} given, but the server has no logits of this sample; .* \d+ \("
    ):
        sample_tree(folder, tested)
    with pytest.raises(ScenarioError, match="the server has no logits after round 1, for example because clients"):
        sample_tree(runs("hks", "rounds=1", "algorithm.warmup=9").folder, 0)
