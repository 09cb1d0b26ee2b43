"""Reading of Parquet files that raysim wrote, or that are small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file or some of its columns. Raises `OSError`, or `pyarrow.ArrowException` for a damaged file."""
    with path.open("rb") as file:
        # Arrow uses no other thread and no read-ahead here: its threads may outlive the interpreter, and the process
        # would then abort at exit.
        return pq.ParquetFile(file, pre_buffer=False).read(columns, use_threads=False)
