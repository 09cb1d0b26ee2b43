"""The benchmark beside PFLlib deals images as PFLlib does, and needs a checkout only to run PFLlib."""

from __future__ import annotations

from pathlib import Path

import beside_pfllib
import numpy as np
import pfllib_process
import pytest
from listed import write_listed

from raysim.data.predefined import read_partition

COUNTS = {
    "dirichlet": ([67, 1, 0, 0, 0, 0, 2, 0, 5, 7], 61, 52_493),
    "pathological": ([1236, 1080, 0, 0, 0, 0, 0, 0, 0, 0], 1737, 52_493),
}
"""Partition -> images of each class and training images of client 0 in PFLlib, whose own code was run for it, and
training images of all clients."""


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
