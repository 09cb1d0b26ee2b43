"""Figures, differences and the summary over tasks follow the first accuracy of the table, or `--metric`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.common.errors import ScenarioError
from raysim.study.compare import compare
from raysim.study.measures import (
    MEASURES,
    TO_TARGET,
    meaning_of,
    title,
)
from raysim.study.pictures import pictures
from raysim.study.runs import RunRecord
from raysim.study.tables import short_columns
from tests.cli.command import run as command
from tests.study.runs import make_run

OWN, CURRENT, VAL = (0.1, 0.3, 0.6, 0.5), (0.2, 0.4, 0.7, 0.9), (0.3, 0.3, 0.8, 0.2)


def made(folder: Path, **changes: object) -> Path:
    for seed in (1, 2, 3):
        for method in ("fedgh", "standalone"):
            less = 0.01 * seed + (0.1 if method == "standalone" else 0)
            own, current = ([value - less for value in values] for values in (OWN, CURRENT))
            make_run(
                folder / f"{method}{seed}",
                method,
                seed,
                own,
                current=current,
                val=VAL,
                val_current=VAL[::-1],
                **changes,
            )
    return folder


def test_curves_show_the_metric_and_name_it(tmp_path: Path) -> None:
    comparison = compare(made(tmp_path), metric="accuracy/all_current")
    (axes,) = [one.figure.axes[0] for one in pictures(comparison, "two-columns") if one.kind == "curves"]
    assert axes.get_ylabel() == "mean test accuracy,\nall clients' current networks"
    assert axes.lines[0].get_ydata() == pytest.approx([value - 0.02 for value in CURRENT])


@pytest.mark.parametrize(
    ("metric", "select", "mean", "label"),
    [
        ("accuracy/all_current", "last", 0.88, "test accuracy of a\nclient's current network"),
        ("accuracy/all", "val", 0.58, "test accuracy of a\nclient's own network"),
        ("accuracy/all_current", "val_current", 0.38, "test accuracy of a\nclient's current network"),
    ],
)
def test_figures_of_clients_show_the_metric_in_the_selected_round(
    tmp_path: Path, metric: str, select: str, mean: float, label: str
) -> None:
    found = compare(made(tmp_path), metric=metric, select=select)
    axes = {one.kind: one.figure.axes[0] for one in pictures(found, "two-columns")}
    assert axes["clients"].get_ylabel() == label
    assert axes["clients"].get_xlabel() == "each box: the clients of all seeds; dot: mean"
    clients = [run.clients_of(found.main)["accuracy"].to_pylist() for run in found.variants[0].runs]
    values = [value for of_run in clients for value in of_run]
    assert sum(values) / len(values) == pytest.approx(mean)
    assert axes["architectures"].get_ylabel() == found.accuracy.mean_label


def test_the_metric_is_tested_against_the_baseline_and_summarised_over_tasks(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b", data={"name": "cifar10"})
    comparison = compare(tmp_path, metric="accuracy/all_current", baseline="standalone")
    measures = [column.measure for column in short_columns(comparison) if column.kind == "difference"]
    assert measures == ["last_current"]
    frame = comparison.over_tasks()
    assert frame is not None and list(frame["iqm"]) == pytest.approx([0.88, 0.78])


def test_a_metric_without_values_of_clients_is_shown_without_their_figures(tmp_path: Path) -> None:
    comparison = compare(made(tmp_path), metric="accuracy/participants")
    assert {one.kind for one in pictures(comparison, "two-columns")} == {"curves"}


def test_a_metric_that_no_run_has_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "a")
    for name in ("compare", "report"):
        code, out, error = command(capfd, name, str(tmp_path / "runs"), "--metric", "accuracy/all_current")
        assert (code, out) == (2, "") and error.startswith("raysim: --metric: ") and "evaluation.clients" in error
    with pytest.raises(ScenarioError, match=r"^--metric: accuracy given; .* accuracy/all, "):
        compare(tmp_path, metric="accuracy")


def test_every_measure_of_a_run_is_in_the_table(tmp_path: Path) -> None:
    """A run that recorded every metric has every measure, and each has a title of its own."""
    folder = make_run(
        tmp_path / "run", accuracy=OWN, current=CURRENT, val=VAL, val_current=VAL[::-1], virtual_s=1.0, absent=1
    )
    rounds = pq.read_table(folder / "rounds.parquet")
    for number, metric in enumerate(("all_current_pooled", "global", "min", "jain", "macro_f1", "balanced"), 1):
        rounds = rounds.append_column(f"accuracy/{metric}", pa.array([number / 100] * len(rounds)))
    for metric in ("accuracy/held_out", "privacy/epsilon", "async/staleness"):
        rounds = rounds.append_column(metric, pa.array([None, 0.25, 0.75, 0.5]))
    pq.write_table(rounds, folder / "rounds.parquet")
    found = RunRecord.read(folder).measures((0.5,))
    own = {"last_current_pooled": 0.01, "last_global": 0.02, "best_global": 0.02, "min": 0.03, "jain": 0.04}
    assert {name: found[name] for name in own} == own and (found["macro_f1"], found["balanced"]) == (0.05, 0.06)
    assert [found[name] for name in ("held_out", "epsilon", "staleness")] == [0.5] * 3
    assert found.keys() == {*MEASURES, *(f"{cost}_to_0.5" for cost in TO_TARGET)} and all(map(meaning_of, found))
    assert len({title(measure) for measure in found}) == len(found)


def test_the_table_begins_with_the_metric_and_its_difference(tmp_path: Path) -> None:
    shown = short_columns(compare(made(tmp_path), metric="accuracy/val_current", baseline="standalone"))
    assert [(one.kind, one.measure) for one in shown[1:3]] == [("mean", "val_current"), ("difference", "val_current")]
