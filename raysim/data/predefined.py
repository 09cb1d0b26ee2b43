"""Predefined partitions: by the id of each sample, or from a file.

Shapes: N clients, C classes, M samples of the data set, I ids, Q samples that clients get.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.common.text import cause, expanded
from raysim.data import partition_counts as counts
from raysim.data.partition_counts import Ints
from raysim.data.shards import PARTS, Partition, make_shards

_MOST_CLIENTS = 1_000_000


def kept_ids(min_samples: int, owner_M: Ints, num_train: int, split: counts.Split) -> Ints:
    """Return the positions of the ids that have enough samples, ascending. Raises ScenarioError if none has."""
    total_I = np.bincount(owner_M)
    train_I = np.bincount(owner_M[:num_train], minlength=len(total_I))
    # A usable id has samples for training and for testing.
    usable_I = total_I > 1 if counts.pooled(split) else (train_I > 0) & (total_I > train_I)
    kept = np.flatnonzero((total_I >= min_samples) & usable_I)
    if not len(kept):
        raise ScenarioError(
            f"{min_samples} given, but with split {split}, no id has a training sample, a test sample and at least "
            f"{min_samples} samples in total (number of ids: {len(total_I)}; samples of the largest id: "
            f"{total_I.max()}); give a smaller number, or another data.split",
            key="data.partition.min_samples",
        )
    return kept


def deal_by_id(
    label_M: Ints,
    num_classes: int,
    owner_M: Ints,
    chosen: Ints,
    owners: tuple[str, ...],
    pools: tuple[Ints, Ints, Ints],
    shares: counts.Shares | None,
    rng: np.random.Generator,
) -> Partition:
    """Make each chosen id a client, in the given order; a client has the samples of its id in each pool.

    shares: by which the samples of the first pool are split per client and class; None: the pools are the parts.
    """
    client_I = np.full(len(owners), -1)
    client_I[chosen] = np.arange(len(chosen))
    client_M = client_I[owner_M]
    parts = [pool[client_M[pool] >= 0] for pool in pools]
    if shares is not None:
        index_Q = parts[0]
        cell_Q = client_M[index_Q] * num_classes + label_M[index_Q]
        count_NC = np.bincount(cell_Q, minlength=len(chosen) * num_classes).reshape(len(chosen), num_classes)
        # Each (client, class) cell keeps its samples, so each cell is treated as a class with a single receiver.
        position, place = counts.deal(cell_Q, counts.split_cells(count_NC, shares).reshape(1, -1, len(PARTS)), rng)
        parts = [index_Q[position[place == part]] for part in range(len(PARTS))]
    shards = (make_shards(index_Q, client_M[index_Q], len(chosen)) for index_Q in parts)
    return Partition(*shards, ids=tuple(owners[k] for k in chosen))


def read_partition(path: str, num_clients: int | None, num_samples: int, label_M: Ints | None = None) -> Partition:
    """Read the partition in a file such as a run's partition.parquet. Raises ScenarioError.

    num_clients: the number of clients, of which the last may have no samples; None: the number in the file. label_M:
    labels of the data set, which are compared with the column label, if there is one.
    """

    def refused(why: str) -> ScenarioError:
        return ScenarioError(f"{path} {why}", key="data.partition.path")

    try:
        client_Q, part_Q, index_Q, label_Q = _columns(path)
    except Exception as error:  # Arrow raises many kinds of errors for a file that is missing, damaged or incomplete
        raise refused(f"cannot be read: {cause(error)}") from error
    if strange := sorted(set(part_Q.tolist()) - set(PARTS)):
        raise refused(f"contains the part {strange[0][:50]!r}; allowed: {', '.join(PARTS)}")
    for name, value_Q, most in (("client", client_Q, _MOST_CLIENTS), ("sample", index_Q, num_samples)):
        if value_Q.min() < 0 or value_Q.max() >= most:
            wrong = value_Q.min() if value_Q.min() < 0 else value_Q.max()
            raise refused(f"contains {name} {wrong}; allowed: 0 to {most - 1}")
    if len(np.unique(client_Q * num_samples + index_Q)) != len(client_Q):
        raise refused("lists the same sample twice for one client; list each sample of a client once")
    if label_M is not None and label_Q is not None and (wrong_W := np.flatnonzero(label_M[index_Q] != label_Q)).size:
        row = int(wrong_W[0])
        raise refused(
            f"gives sample {index_Q[row]} the label {label_Q[row]}, but in the data set it has label "
            f"{label_M[index_Q[row]]}; use a partition of this data set"
        )
    count = int(client_Q.max()) + 1 if num_clients is None else num_clients
    if not (part_Q == "train").any():
        raise refused("has no training samples; in at least one row, give column `part` the value `train`")
    masks = [part_Q == part for part in PARTS]
    return Partition(*(make_shards(index_Q[mask_Q], client_Q[mask_Q], count) for mask_Q in masks))


def _columns(path: str) -> tuple[Ints, NDArray[Any], Ints, NDArray[Any] | None]:
    """Return the columns client, part, sample and, if it exists, label of a Parquet file.

    Raises exceptions of Arrow, also if one of the first three lacks a value.
    """
    import pyarrow as pa  # imported here, so that other partitions are checked without importing Arrow
    import pyarrow.parquet as pq

    table = pq.read_table(expanded(path))
    types = {"client": pa.int64(), "part": pa.string(), "sample": pa.int64()}
    wanted = table.select([*types]).cast(pa.schema([pa.field(*one, nullable=False) for one in types.items()]))
    client_Q, part_Q, index_Q = (wanted.column(name).to_numpy() for name in types)
    label_Q = table.column("label").to_numpy() if "label" in table.column_names else None
    return client_Q, part_Q.astype(str), index_Q, label_Q
