"""What each client holds of a data set, as positions in it; and that as a table on disk.

Shapes: N clients, C classes, M samples of the data set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysim.common.errors import ScenarioError
from raysim.common.shards import Shards
from raysim.data.split import Ints

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PARTS", "Partition", "Shards", "make_shards"]

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client. A client's three parts never overlap."""

    train: Shards
    val: Shards
    test: Shards

    @property
    def num_clients(self) -> int:
        """N, clients without any sample included."""
        return len(self.train)

    @property
    def parts(self) -> Mapping[str, Shards]:
        """The three parts by name, in the order train, val, test."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def count_NC(self, label_M: Ints, num_classes: int | None = None, part: str = "train") -> Ints:
        """How many samples of each class each client has in one part."""
        classes = int(label_M.max()) + 1 if num_classes is None else num_classes
        shards = self.parts[part]
        flat = shards.owner * classes + label_M[shards.index]
        return np.bincount(flat, minlength=self.num_clients * classes).reshape(self.num_clients, classes)

    def classes(self, label_M: Ints, client: int) -> Ints:
        """The classes a client trains on, ascending."""
        return np.unique(label_M[self.train.of(client)])

    def holders_C(self, label_M: Ints, num_classes: int | None = None) -> Ints:
        """How many clients train on each class."""
        return (self.count_NC(label_M, num_classes) > 0).sum(0)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of every client's samples."""
        sha = hashlib.sha256()
        for shards in self.parts.values():
            for array in (shards.offset, shards.index):
                sha.update(f"{len(array)}\n".encode())
                sha.update(np.ascontiguousarray(array, dtype="<i8").data)
        return sha.hexdigest()

    def table(self, label_M: Ints) -> pa.Table:
        """One row per client, part and sample, with columns client, part, sample (position) and label."""
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
        meta = {"raysim": json.dumps({"num_clients": self.num_clients})}
        return pa.table(columns).replace_schema_metadata(meta)

    @classmethod
    def from_table(cls, table: pa.Table) -> Partition:
        """The partition that `table` wrote, rows in any order. Raises ScenarioError for anything else."""
        try:
            client = table.column("client").to_numpy().astype(np.int64, casting="safe")
            sample = table.column("sample").to_numpy().astype(np.int64, casting="safe")
            part = np.array(table.column("part").to_pylist(), dtype=np.str_)
            meta = json.loads((table.schema.metadata or {}).get(b"raysim", b"{}"))
            clients = int(meta.get("num_clients", client.max(initial=-1) + 1))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ScenarioError(f"a saved partition needs columns client, part and sample ({error})") from None
        bad = ~np.isin(part, PARTS) | (client < 0) | (client >= clients) | (sample < 0)
        if bad.any():
            row = int(bad.argmax())
            raise ScenarioError(
                f"a saved partition of {clients} clients holds an impossible row: client {client[row]}, "
                f"part {str(part[row])!r}, sample {sample[row]}"
            )
        return cls(*(make_shards(sample[part == name], client[part == name], clients) for name in PARTS))


def make_shards(index: Ints, client: Ints, num_clients: int) -> Shards:
    """Sort samples, each with its client, into shards."""
    offset = np.concatenate([[0], np.bincount(client, minlength=num_clients).cumsum()]).astype(np.int64)
    return Shards(index[np.lexsort((index, client))], offset)
