"""A partition as the positions of each client's samples in the data set, and as a table on disk.

Shapes: N clients, C classes, M samples of the data set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raysim.common.shards import Shards
from raysim.data.partition_counts import Ints

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client. A client's three parts never overlap."""

    train: Shards
    val: Shards
    test: Shards
    ids: tuple[str, ...] = field(default=(), kw_only=True)
    """Each client's id in the data, if the partition is by ids."""
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    """Sentences about effects that the settings do not show, such as the number of ids that were left out."""

    @property
    def num_clients(self) -> int:
        """N, including clients without samples."""
        return len(self.train)

    @property
    def parts(self) -> Mapping[str, Shards]:
        """The three parts by name, in the order train, val, test."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def count_NC(self, label_M: Ints, num_classes: int, part: str = "train") -> Ints:
        """Return the number of samples per client and class in one part."""
        shards = self.parts[part]
        flat = shards.owner * num_classes + label_M[shards.index]
        return np.bincount(flat, minlength=self.num_clients * num_classes).reshape(self.num_clients, num_classes)

    @property
    def digest(self) -> str:
        """The SHA-256, in hex, of the positions of every client's samples."""
        sha = hashlib.sha256()
        for shards in self.parts.values():
            for array in (shards.offset, shards.index):
                sha.update(f"{len(array)}\n".encode())
                sha.update(np.ascontiguousarray(array, dtype="<i8").data)
        return sha.hexdigest()

    def table(self, label_M: Ints, class_names: Sequence[str] = ()) -> pa.Table:
        """Return a table with one row per client, part and sample: columns client, part, sample (position) and label.

        If the partition is by ids, there is also the column id. The table's metadata have the names of the classes.
        """
        import pyarrow as pa

        shards = tuple(self.parts.values())
        index = np.concatenate([one.index for one in shards])
        code = np.repeat(np.arange(len(PARTS), dtype=np.int32), [len(one.index) for one in shards])
        columns = {
            "client": np.concatenate([one.owner for one in shards]),
            "part": pa.DictionaryArray.from_arrays(code, list(PARTS)).cast(pa.string()),
            "sample": index,
            "label": label_M[index],
        }
        if self.ids:
            columns["id"] = pa.DictionaryArray.from_arrays(columns["client"].astype(np.int32), list(self.ids))
        return pa.table(columns, metadata={"class_names": json.dumps(class_names)})


def make_shards(index: Ints, client: Ints, num_clients: int) -> Shards:
    """Group samples by client, in ascending order. client: each sample's client."""
    offset = np.concatenate([[0], np.bincount(client, minlength=num_clients).cumsum()]).astype(np.int64)
    size = index.max(initial=0) + 1
    return Shards(np.sort(client * size + index) % size, offset)  # this sort is four times as fast as `np.lexsort`
