"""The benchmark beside Flower's niid_bench deals Fashion-MNIST as that baseline does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import beside_niid_bench
import numpy as np
import pytest

from raysim.data.predefined import read_partition

COUNTS = {
    "iid": [614, 643, 579, 581, 603, 562, 604, 588, 636, 590],
    "dirichlet": [1311, 1134, 31, 2363, 1531, 0, 0, 0, 0, 0],
}
"""Partition -> images of each class that client 0 has with seed 42 in the baseline, whose own code was run for it."""


@pytest.fixture
def data(label_M: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(label_M=label_M, num_train=60_000)


@pytest.mark.parametrize("partition", COUNTS)
def test_clients_have_the_samples_that_the_baseline_gives_them(
    partition: str, tmp_path: Path, data: SimpleNamespace
) -> None:
    label_M = data.label_M[: data.num_train]
    train = beside_niid_bench.deal(partition, label_M, 42)
    assert np.bincount(label_M[train[0]], minlength=10).tolist() == COUNTS[partition]
    assert sorted(np.concatenate(train)) == list(range(data.num_train))

    beside_niid_bench.write_lists(tmp_path / "lists.parquet", train, data.num_train, len(data.label_M))
    read = read_partition(str(tmp_path / "lists.parquet"), 10, len(data.label_M))
    assert all(np.array_equal(read.train.of(k), np.sort(train[k])) for k in range(10))
    assert sorted(read.test.index) == list(range(data.num_train, len(data.label_M)))
