"""The packed rounds: what was not measured is null, NaN is NaN, and a round costs bytes, not objects."""

from __future__ import annotations

import gc
import math
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from raysim.common.results import METRICS
from raysim.report.load import read_rounds
from raysim.tracking.client_rows import MissingRowsError
from raysim.tracking.rounds import RoundRows


def test_nan_is_told_from_not_measured_and_a_late_metric_has_no_past(tmp_path: Path) -> None:
    rounds = RoundRows(tmp_path)
    rounds.append(0, {"accuracy/all": 0.25})
    rounds.append(1, {"loss/train": math.nan, "server/late": 3})
    rounds.write()
    table = read_rounds(tmp_path)
    assert table.column_names == ["round", *METRICS, "server/late"]
    assert table["accuracy/all"].to_pylist() == [0.25, None]
    nothing, nan = table["loss/train"].to_pylist()
    assert nothing is None and math.isnan(nan)
    assert table["server/late"].to_pylist() == [None, 3.0]


def test_truncate_takes_rounds_from_the_file_as_they_were(tmp_path: Path) -> None:
    rounds = RoundRows(tmp_path)
    for t in range(4):
        rounds.append(t, {"accuracy/all": t / 10, "loss/train": math.nan if t == 1 else None})
    rounds.write()
    before = read_rounds(tmp_path)
    rounds.append(4, {"server/late": 1.0})  # never written
    rounds.truncate(2)
    assert (len(rounds), rounds.written) == (3, 4)
    rounds.write()
    after = read_rounds(tmp_path)
    assert after.schema == before.schema
    assert str(after.to_pylist()) == str(before.slice(0, 3).to_pylist())  # as text, for NaN is not equal to itself
    with pytest.raises(MissingRowsError, match="rounds"):
        rounds.truncate(3)  # the file holds three of the four rounds


def test_a_round_costs_nine_bytes_a_metric(tmp_path: Path) -> None:
    rounds = RoundRows(tmp_path)
    values = {name: 0.5 + i for i, name in enumerate(METRICS)}
    rounds.append(0, values)
    rounds.write()
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for t in range(1, 1001):
            rounds.append(t, {name: value + t for name, value in values.items()})
            if t % 100 == 0:
                rounds.write()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # As objects it would be 24 bytes a number, and its place in a dict.
    assert held + pa.total_allocated_bytes() - arrow < 1.3 * 1000 * (8 + 9 * len(METRICS))
