"""The metrics of every round: packed in memory, and in `rounds.parquet`, which is replaced as a whole."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysim.common.files import replace
from raysim.common.results import METRICS


@dataclass
class _Column:
    """One metric in every round. Packed, because a run may have tens of thousands and no round may cost memory."""

    value_T: array[float] = field(default_factory=lambda: array("d"))
    missing_T: bytearray = field(default_factory=bytearray)  # 1 where it was not measured, which is not the same as NaN

    def append(self, value: float | None) -> None:
        self.value_T.append(math.nan if value is None else float(value))
        self.missing_T.append(value is None)

    def arrow(self) -> pa.Array:
        # Of a copy: an array that lends its memory cannot grow, and an error's traceback would keep it lent.
        return pa.array(np.array(self.value_T), mask=np.array(self.missing_T, dtype=bool))


class RoundRows:
    """The rounds of one run folder: all logged rounds in memory, those until the last `write` in the file.

    Attributes:
        parquet: the file.
        written: how many rounds it holds.
    """

    def __init__(self, folder: Path) -> None:
        self.parquet = folder / "rounds.parquet"
        self.written = 0
        self._clear()

    def _clear(self) -> None:
        self._rounds = array("q")
        self._columns = {name: _Column() for name in METRICS}

    def __len__(self) -> int:
        """How many rounds there are."""
        return len(self._rounds)

    def __iter__(self) -> Iterator[dict[str, float]]:
        """Every round: its number, "round", and the metrics that were measured and are no NaN."""
        for i, t in enumerate(self._rounds):
            values = ((name, column.value_T[i]) for name, column in self._columns.items())
            yield {"round": t, **{name: value for name, value in values if not math.isnan(value)}}

    def append(self, t: int, values: Mapping[str, float | int | None]) -> None:
        """Add round `t`."""
        for name in values:
            if name not in self._columns:
                self._columns[name] = column = _Column()
                for _ in self._rounds:
                    column.append(None)
        self._rounds.append(t)
        for name, column in self._columns.items():
            column.append(values.get(name))

    def write(self) -> None:
        """Let the file hold all rounds. Raises `OSError` when the disk does not do its part."""
        fields = [pa.field("round", pa.int64(), nullable=False)]
        fields += [pa.field(name, pa.float64()) for name in self._columns]
        columns = [pa.array(np.array(self._rounds)), *(column.arrow() for column in self._columns.values())]
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        replace(self.parquet, lambda file: pq.write_table(table, file))
        self.written = len(self)

    def truncate(self, t: int) -> int:
        """Hold rounds 0 to `t` of the file, and no others; the file stays as it is until `write`.

        Returns how many of them the file does not hold.

        Raises:
            OSError, pyarrow.ArrowException, KeyError, TypeError, ValueError: the file is not there or damaged.
        """
        self._clear()
        if t < 0:
            return 0
        with self.parquet.open("rb") as file:
            # Without read-ahead, as in `raysim.report.load`.
            table = pq.ParquetFile(file, pre_buffer=False).read(use_threads=False)
        table.validate(full=True)
        rows = [row for row in table.to_pylist() if row["round"] <= t]
        rounds = [row.pop("round") for row in rows]
        if rounds != sorted({*rounds} & {*range(t + 1)}):
            raise ValueError(f"{self.parquet.name} does not hold rounds in their order")
        for at, row in zip(rounds, rows, strict=True):
            self.append(at, {name: value for name, value in row.items() if value is not None})
        return t + 1 - len(rounds)

    def remove(self) -> None:
        """Let there be no file."""
        self.parquet.unlink(missing_ok=True)
        self.written = 0
