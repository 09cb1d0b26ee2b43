"""The packed rounds: what was not measured is null, NaN is NaN, and a round costs bytes, not objects."""

from __future__ import annotations

import math
from pathlib import Path

from raysim.common.results import METRICS
from raysim.results.load import read_rounds
from raysim.results.rounds import RoundRows


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
