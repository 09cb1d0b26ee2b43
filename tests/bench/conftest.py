"""The benchmarks are scripts, not a part of the package: their folder is their own import path."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))


@pytest.fixture
def label_M(data_root: str) -> np.ndarray:
    """The labels of Fashion-MNIST; decoding its images would take seconds."""
    files = [next(Path(data_root, "fashion_mnist").glob(f"{part}-*.parquet")) for part in ("train", "test")]
    return np.concatenate([pq.read_table(file, columns=["label"])["label"].to_numpy() for file in files])
