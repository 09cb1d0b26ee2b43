"""The picture of a run is drawn from whatever was measured."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from raysim.results.plots import plot_accuracy


def made_up(rounds):
    rows = []
    for t in range(rounds):
        row = {"round": t, "comm/total_bytes": t * 2.0**20, "accuracy/participants": None}
        if t % 2 == 0:  # evaluated every second round
            row |= {"accuracy/all": 0.1 + t / 100, "accuracy/all_std": 0.1, "accuracy/worst_decile": t / 200}
        if t:
            row["accuracy/participants"] = 0.2 + t / 100
        rows.append(row)
    return rows


@pytest.mark.parametrize("rounds", [0, 40])
def test_any_number_of_rounds(tmp_path, rounds):
    path = plot_accuracy(made_up(rounds), tmp_path / "plots" / "accuracy.png", title="made up")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_table_and_missing_values(tmp_path):
    names = {name: None for row in made_up(3) for name in row}
    table = pa.table({name: [row.get(name) for row in made_up(20)] for name in names})
    assert plot_accuracy(table, tmp_path / "a.png").is_file()
    rows = made_up(5)
    rows[2]["accuracy/all"] = math.nan
    rows[4]["accuracy/all_std"] = math.nan
    assert plot_accuracy(rows, tmp_path / "b.png").is_file()
