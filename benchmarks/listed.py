"""The file of partition `listed`, and a Dirichlet partition that several other projects have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def write_listed(path: Path, train: Sequence[Sequence[int] | Ints], test: Sequence[Sequence[int] | Ints]) -> None:
    """Write the file that partition `listed` reads. train, test: the positions of each client's samples."""
    shards = [
        (k, part, np.asarray(shard, np.int64))
        for part, of in (("train", train), ("test", test))
        for k, shard in enumerate(of)
    ]
    client = np.concatenate([np.full(len(shard), k) for k, _, shard in shards])
    part = np.concatenate([np.full(len(shard), part) for _, part, shard in shards])
    sample = np.concatenate([shard for *_, shard in shards])
    pq.write_table(pa.table({"client": client, "part": part, "sample": sample}), path)


def dirichlet(
    label_M: NDArray[np.integer],
    clients: int,
    alpha: float,
    fewest: int,
    rng: np.random.Generator | np.random.RandomState,
) -> list[Ints]:
    """Divide each class by a Dirichlet draw among the clients with less than an equal share; repeat if one is small."""
    while True:
        held: list[Ints] = [np.empty(0, np.int64)] * clients
        for label in range(int(label_M.max()) + 1):
            images = np.flatnonzero(label_M == label)
            rng.shuffle(images)
            share_K = rng.dirichlet(np.full(clients, alpha))
            share_K = share_K * [len(mine) < len(label_M) / clients for mine in held]
            ends = (np.cumsum(share_K / share_K.sum()) * len(images)).astype(int)[:-1]
            held = [np.append(mine, new) for mine, new in zip(held, np.split(images, ends), strict=True)]
        if min(map(len, held)) >= fewest:
            return held
