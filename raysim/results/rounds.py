"""The metrics of all rounds: a table in memory, and the file `rounds.parquet`, which is always replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.common.files import replace
from raysim.common.parquet import read_parquet
from raysim.common.results import METRICS
from raysim.results.client_rows import MissingRowsError


class RoundRows:
    """The rounds of a run folder. Memory has all logged rounds, and the file has those up to the last `write`.

    A run may have tens of thousands of rounds, so they are kept in an Arrow table: nine bytes per metric.

    Attributes:
        parquet: the path of the file.
        written: the number of rounds in the file.
    """

    def __init__(self, folder: Path) -> None:
        self.parquet = folder / "rounds.parquet"
        self.written = 0
        self._packed = _table([])
        self._latest: list[dict[str, float]] = []  # rounds that are not in the packed table yet

    def __len__(self) -> int:
        """The number of rounds in memory."""
        return len(self._packed) + len(self._latest)

    def append(self, t: int, values: Mapping[str, float | int | None]) -> None:
        """Add round `t`. A missing metric or None means not measured; NaN is a measured value."""
        self._latest.append({"round": t, **{name: float(v) for name, v in values.items() if v is not None}})

    def write(self) -> None:
        """Write all rounds to the file. Raises `OSError` if the disk fails."""
        table = self._table()
        replace(self.parquet, lambda file: pq.write_table(table, file))
        self.written = len(self)

    def truncate(self, t: int) -> None:
        """Replace the rounds in memory by rounds 0 to `t` of the file; `write` then changes the file.

        Raises:
            MissingRowsError: the file lacks one of these rounds.
            OSError, pyarrow.ArrowException: the file is missing or damaged.
        """
        self._packed, self._latest = _table([]), []
        if t < 0:
            return
        table = read_parquet(self.parquet)
        table = table.filter(pc.field("round") <= t)
        if table["round"].to_pylist() != [*range(t + 1)]:
            raise MissingRowsError(f"{self.parquet.name} lacks some of the rounds 0 to {t}")
        later = [name for name in table.column_names if table[name].null_count == len(table) and name not in METRICS]
        self._packed = _joined(self._packed, table.drop_columns(later))

    def remove(self) -> None:
        """Remove the file."""
        self.parquet.unlink(missing_ok=True)
        self.written = 0

    def _table(self) -> pa.Table:
        """Return all rounds as one table."""
        if self._latest:
            self._packed, self._latest = _joined(self._packed, _table(self._latest)), []
        return self._packed


def _table(rows: Sequence[Mapping[str, float]]) -> pa.Table:
    """Return a table with the column `round`, a column for each of `METRICS`, and one for each other metric."""
    names = dict.fromkeys([*METRICS, *(name for row in rows for name in row if name != "round")])
    fields = [pa.field("round", pa.int64(), nullable=False), *(pa.field(name, pa.float64()) for name in names)]
    return pa.Table.from_pylist(list(rows), pa.schema(fields))


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    return pa.concat_tables([first, second], promote_options="default").combine_chunks()
