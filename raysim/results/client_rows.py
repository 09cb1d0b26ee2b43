"""Client rows on disk: during a run the Arrow stream `clients.arrows`, and after its end `clients.parquet`.

A Parquet file cannot be appended to. The stream can, and stays readable up to the last batch that a killed process
completed. Every round writes a batch with its number, even without rows, so a stream that was cut off anywhere shows
which rounds it contains.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.common.files import replace, replacing, sync_folder
from raysim.common.results import ClientRow

_TYPES = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
_TYPES["list[int]"] = pa.list_(pa.int32())
CLIENT_SCHEMA = pa.schema(
    [
        pa.field(f.name, _TYPES[str(f.type).removesuffix(" | None")], nullable=str(f.type).endswith(" | None"))
        for f in fields(ClientRow)
    ]
)
"""The columns of `clients.parquet`, which are the fields of `ClientRow` in the same order."""

_ROW_GROUP = 65_536  # number of rows; with one small group per round, reading would be slow
_Batches = Iterator[tuple[int, pa.RecordBatch]]  # (first round in the batch, batch)


class MissingRowsError(Exception):
    """Rows are missing in rounds that should be kept."""


class ClientRows:
    """The client rows of a run folder. Every method raises `OSError` if the disk fails.

    Attributes:
        stream: the file that grows while the run is running.
        parquet: the file that it becomes when the run ends.
    """

    def __init__(self, folder: Path) -> None:
        self.stream, self.parquet = folder / "clients.arrows", folder / "clients.parquet"
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def begin(self) -> None:
        """Prepare for `append`: continue the rows that `truncate` kept, or start an empty stream."""
        if self._file is None:
            self.truncate(-1)

    def append(self, t: int, rows: Sequence[ClientRow]) -> None:
        """Add the rows of round `t`; readers can see them afterwards."""
        assert self._file is not None, "append before begin"
        _write(self._writer, t, _batch(rows))
        self._file.flush()

    def sync(self) -> None:
        """Write all rows so far to the disk, so that they survive a power cut."""
        assert self._file is not None, "sync before begin"
        os.fsync(self._file.fileno())

    def end(self) -> None:
        """Convert the stream to Parquet; does nothing without a stream."""
        if self._file is not None:
            try:
                self._writer.close()
            finally:
                self.close_stream()
        if not self.stream.exists():
            return

        def convert(file: IO[bytes]) -> None:
            with pq.ParquetWriter(file, CLIENT_SCHEMA, compression="zstd") as writer:
                _write_tables(writer.write_table, stream_batches(self.stream))

        replace(self.parquet, convert)
        sync_folder(self.parquet.parent)
        self.stream.unlink()

    def close_stream(self) -> None:
        """Close the stream; the files do not change."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def truncate(self, t: int) -> dict[int, ClientRow]:
        """Keep the rows up to round `t` in a stream to which rows can be appended; delete later rows.

        Returns, per client, the last kept row in which it was measured. If the process dies during this call, the files
        still contain all rows up to `t`.

        Raises:
            MissingRowsError: rows of these rounds are missing.
            OSError, pyarrow.ArrowException: the file is missing or damaged.
        """
        latest, since = CLIENT_SCHEMA.empty_table(), CLIENT_SCHEMA.empty_table()
        with replacing(self.stream) as file:
            writer = pa.ipc.new_stream(file, CLIENT_SCHEMA)
            # Arrow writes the schema with the first batch. An empty batch makes the file readable immediately.
            _write(writer, -1, _batch([]))
            for first, batch in self._until(t):
                _write(writer, first, batch)
                since = pa.concat_tables([since, pa.Table.from_batches([batch])])
                # Merging after each round would be slow: a round has few rows, but there may be many clients.
                if since.num_rows >= latest.num_rows:
                    latest, since = last_measured(pa.concat_tables([latest, since]), "total"), since.slice(0, 0)
            _write(writer, t, _batch([]))
        self.close_stream()
        self._file, self._writer = file, writer
        if self.parquet.exists():
            sync_folder(self.parquet.parent)
            self.parquet.unlink()
        rows = last_measured(pa.concat_tables([latest, since]), "total").to_pylist()
        return {row["client"]: ClientRow(**row) for row in rows}

    def _until(self, t: int) -> _Batches:
        """Yield the rows of rounds 0 to `t`, in batches."""
        if t < 0:
            return
        # If a process was killed in `end` or `truncate`, both files exist, and both have all rows up to `t`.
        whole = self.parquet.exists()
        reached = -1
        for first, batch in _parquet(self.parquet) if whole else stream_batches(self.stream):
            if first > t:
                return
            reached = first
            count = int(np.searchsorted(batch.column("round").to_numpy(), t, side="right"))
            if count:
                yield first, batch.slice(0, count)
        if reached < t and not whole:
            raise MissingRowsError(f"{self.stream.name} ends after round {reached}")


def _batch(rows: Sequence[ClientRow]) -> pa.RecordBatch:
    columns = [pa.array([getattr(row, f.name) for row in rows], f.type) for f in CLIENT_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=CLIENT_SCHEMA)


def _write(writer: Any, first: int, batch: pa.RecordBatch) -> None:
    writer.write_batch(batch, custom_metadata={"round": str(first)})


def stream_batches(path: Path) -> _Batches:
    """Yield the complete batches of a stream, whose end may be missing after a kill or a full disk."""
    with path.open("rb") as file:
        try:
            for batch, facts in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
                batch.validate(full=True)  # damaged rows could make Arrow crash later
                yield int(facts["round"]), batch
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            pass  # a batch is incomplete or damaged, but earlier batches are complete


def _parquet(path: Path) -> _Batches:
    with path.open("rb") as file:
        # Read-ahead is off, because its threads may outlive the interpreter, and the process would then abort at exit.
        for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(use_threads=False):
            if batch.num_rows:
                yield batch.column("round")[0].as_py(), batch


def _write_tables(write: Callable[[pa.Table], None], batches: _Batches) -> None:
    """Write rows as tables of at least `_ROW_GROUP` rows; the last table may be smaller."""
    piece: list[Any] = []
    rows = 0
    for _, batch in batches:
        piece.append(batch)
        rows += batch.num_rows
        if rows >= _ROW_GROUP:
            write(pa.Table.from_batches(piece, CLIENT_SCHEMA))
            piece, rows = [], 0
    write(pa.Table.from_batches(piece, CLIENT_SCHEMA))


def last_measured(clients: pa.Table, column: str = "accuracy") -> pa.Table:
    """Return each client's last row with a value in a column, in id order. clients: rows of `read_clients`.

    A client without test samples is tested too, for its other samples: it has a `total` of 0, and no `accuracy`.
    """
    measured = clients.filter(pc.is_valid(clients[column])) if clients.num_rows else clients
    if not measured.num_rows:
        return measured
    client, t = measured["client"].to_numpy(), measured["round"].to_numpy()
    order = np.lexsort((t, client))
    is_last = np.append(client[order][1:] != client[order][:-1], True)
    return measured.take(order[is_last])
