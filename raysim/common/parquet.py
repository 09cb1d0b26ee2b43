"""Reading of Parquet files that raysim wrote, or that are small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some of its columns. Raises `OSError`, or `pyarrow.ArrowException` if it is damaged."""
    with path.open("rb") as file:
        # In this thread and without read-ahead: Arrow's threads may outlive the interpreter, and the process then
        # aborts at exit.
        return pq.ParquetFile(file, pre_buffer=False).read(columns, use_threads=False)
