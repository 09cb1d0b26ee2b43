"""The benchmark beside PFLlib deals images as PFLlib does, and needs a checkout only to run PFLlib."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import beside_pfllib
import numpy as np
import pfllib_process
import pytest
import torch
from listed import write_listed

from raysim.common.inputs import image
from raysim.data.predefined import read_partition

COUNTS = {
    "dirichlet": ([67, 1, 0, 0, 0, 0, 2, 0, 5, 7], 61, 52_493),
    "pathological": ([1236, 1080, 0, 0, 0, 0, 0, 0, 0, 0], 1737, 52_493),
}
"""Partition -> images of each class and training images of client 0 in PFLlib, whose own code was run for it, and
training images of all clients."""

FAKE = {
    "trainmodel/models.py": """
import torch
class FedAvgCNN(torch.nn.Linear):
    def __init__(self, in_features, num_classes, dim):
        super().__init__(in_features, num_classes)
""",
    "servers/serverfd.py": """
class FD:
    def __init__(self, args, times):
        self.rs_test_acc = []
    def select_clients(self):
        return [0]
    def evaluate(self):
        self.rs_test_acc.append(len(self.rs_test_acc) / 4)
    def train(self):
        while True:
            self.select_clients()
            self.evaluate()
""",
}
"""Files of a checkout with the parts of PFLlib that the process needs."""


@pytest.mark.parametrize("partition", COUNTS)
def test_clients_have_the_images_that_pfllib_gives_them(partition: str, tmp_path: Path, label_M: np.ndarray) -> None:
    parts = beside_pfllib.deal(partition, label_M)
    classes, first, all_train = COUNTS[partition]
    assert np.bincount(label_M[np.concatenate(parts[0])], minlength=10).tolist() == classes
    assert (len(parts[0][0]), sum(len(train) for train, _ in parts)) == (first, all_train)
    assert sorted(np.concatenate([of for both in parts for of in both])) == list(range(70_000))

    write_listed(tmp_path / "lists.parquet", *zip(*parts, strict=True))
    read = read_partition(str(tmp_path / "lists.parquet"), 20, 70_000)
    assert all(np.array_equal(read.train.of(k), np.sort(parts[k][0])) for k in range(20))
    assert all(np.array_equal(read.test.of(k), np.sort(parts[k][1])) for k in range(20))


def test_pfllib_reads_pixels_from_minus_one_to_one(tmp_path: Path) -> None:
    pixels = np.array([0, 255], np.uint8).repeat(28 * 28).reshape(2, 28, 28, 1)
    pfllib_process.write_images(tmp_path, pixels, np.array([3, 4]), [(np.array([1]), np.array([0]))])
    for part, pixel, label in (("train", 1.0, 4), ("test", -1.0, 3)):
        read = np.load(tmp_path / "dataset" / "FashionMNIST" / part / "0.npz", allow_pickle=True)["data"].tolist()
        assert read["x"].shape == (1, 1, 28, 28)
        assert np.all(read["x"] == pixel)
        assert read["y"].tolist() == [label]


def test_the_network_has_pfllibs_layers() -> None:
    net = beside_pfllib.fedavg_cnn(10, image(1, 28, 28), 512)
    sizes = [tuple(weight.shape) for name, weight in net.named_parameters() if name.endswith("weight")]
    assert sizes == [(32, 1, 5, 5), (64, 32, 5, 5), (512, 1024), (10, 512)]
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_cell_for_each_method(tmp_path: Path) -> None:
    parts = [(np.array([2 * k]), np.array([2 * k + 1])) for k in range(20)]
    write_listed(tmp_path / "lists.parquet", *zip(*parts, strict=True))
    methods = list(beside_pfllib.METHODS)
    given = Namespace(methods=methods, rounds=1, every=1, folder=tmp_path, lists=tmp_path, root=None)
    study = beside_pfllib.study(given)
    assert list(study.cells["label"]) == methods
    assert len(set(study.cells["name"])) == len(methods)


@pytest.mark.large
def test_pfllibs_process_answers_each_line(tmp_path: Path) -> None:
    for name, text in FAKE.items():
        (tmp_path / "system" / "flcore" / name).parent.mkdir(parents=True)
        (tmp_path / "system" / "flcore" / name).write_text(text)
    theirs = pfllib_process.Theirs(tmp_path, tmp_path, "FD", 1, 1)
    assert [theirs.iteration()["accuracy"] for _ in range(3)] == [0.0, 0.25, 0.5]
    theirs.close()
    assert theirs.process.returncode == 0
