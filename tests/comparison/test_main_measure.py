"""Figures, differences and the summary over tasks follow the first accuracy of the table, or `--metric`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from raysim.common.errors import ScenarioError
from raysim.comparison.compare import compare
from raysim.comparison.measures import (
    MEASURES,
    SELECT,
    TARGETS,
    TO_TARGET,
    main_measure,
    meaning_of,
    title,
)
from raysim.comparison.pictures import pictures
from raysim.comparison.report import report
from raysim.comparison.runs import RunRecord, of_clients
from raysim.comparison.tables import short_columns
from raysim.report.accuracies import DRAWABLE
from tests.cli.command import run as command
from tests.comparison.runs import make_run

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


def figure(folder: Path, kind: str, metric: str | None = None) -> Figure:
    found = {one.kind: one.figure for one in pictures(compare(folder, metric=metric), "two-columns")}
    return found[kind]


@pytest.mark.parametrize(
    ("metric", "values", "label"),
    [
        (None, OWN, "mean test accuracy,\nall clients' own networks"),
        ("accuracy/all_current", CURRENT, "mean test accuracy,\nall clients' current networks"),
        ("accuracy/val", [value + 0.02 for value in VAL], "mean validation accuracy,\nall clients' own networks"),
    ],
)
def test_curves_show_the_metric_and_name_it(
    tmp_path: Path, metric: str | None, values: list[float], label: str
) -> None:
    axes = figure(made(tmp_path), "curves", metric).axes[0]
    assert axes.get_ylabel() == label
    assert axes.lines[0].get_ydata() == pytest.approx([value - 0.02 for value in values])


@pytest.mark.parametrize(
    ("metric", "select", "mean", "label"),
    [
        ("accuracy/all", "last", 0.48, "test accuracy of a\nclient's own network"),
        ("accuracy/all_current", "last", 0.88, "test accuracy of a\nclient's current network"),
        ("accuracy/val", "last", 0.2, "validation accuracy of a\nclient's own network"),
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


def test_of_two_runs_with_one_seed_figures_show_the_last(tmp_path: Path) -> None:
    for place, last in (("1", 0.2), ("2", 0.8)):
        make_run(tmp_path / place, accuracy=(0.1, last))
    assert figure(tmp_path, "curves").axes[0].lines[0].get_ydata() == pytest.approx([0.1, 0.8])


def test_the_metric_is_tested_against_the_baseline_and_summarised_over_tasks(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b", data={"name": "cifar10"})
    comparison = compare(tmp_path, metric="accuracy/all_current", baseline="standalone")
    measures = [column.measure for column in short_columns(comparison) if column.kind == "difference"]
    assert measures == ["last_current"]
    frame = comparison.over_tasks()
    assert frame is not None and list(frame["iqm"]) == pytest.approx([0.88, 0.78])


def test_a_metric_without_values_of_clients_is_shown_without_their_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], undrawn: None
) -> None:
    made(tmp_path / "runs")
    comparison = compare(tmp_path / "runs", metric="accuracy/participants")
    assert {one.kind for one in pictures(comparison, "two-columns")} == {"curves"}
    words = [str(tmp_path / "runs"), "--metric", "accuracy/participants"]
    assert command(capfd, "compare", *words, "-o", str(tmp_path / "out"))[0] == 0
    assert not list((tmp_path / "out").glob("clients*")) and (tmp_path / "out" / "curves.pdf").stat().st_size
    page = report(tmp_path / "runs", output=tmp_path / "r.html", metric="accuracy/participants").read_text()
    assert "Mean test accuracy of participants" in page


def test_a_metric_that_no_run_has_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "a")
    for name in ("compare", "report"):
        code, out, error = command(capfd, name, str(tmp_path / "runs"), "--metric", "accuracy/all_current")
        assert (code, out) == (2, "") and error.startswith("raysim: --metric: ") and "evaluation.clients" in error
    with pytest.raises(ScenarioError, match=r"^--metric: accuracy given; .* accuracy/all, "):
        compare(tmp_path, metric="accuracy")


def test_a_round_is_selected_for_the_metrics_of_the_same_networks() -> None:
    with pytest.raises(ScenarioError, match=r"^--metric: .* accuracy/all, accuracy/val$"):
        main_measure("accuracy/all_current", "val")


def test_every_metric_has_a_measure() -> None:
    for select, measure in SELECT.items():
        assert main_measure(None, select) == measure
    for metric in DRAWABLE:
        assert MEASURES[main_measure(metric, "last")].metric == metric


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


def test_values_of_clients() -> None:
    """Own networks: the latest row of each client; current networks: the clients of the last round that tested them."""
    table = pa.table(
        {
            "round": [1, 1, 2, 2, 3],
            "client": [0, 1, 0, 1, 0],
            "accuracy": [0.1, 0.2, 0.3, None, None],
            "current_accuracy": [0.4, 0.5, None, 0.6, None],
            "val_correct": [1, 2, None, 3, 4],
            "val_total": [4, 4, None, 4, 0],
        }
    )

    def values(metric: str, until: int | None = None) -> dict[int, float]:
        found = of_clients(DRAWABLE[metric], table, until)
        return dict(zip(found["client"].to_pylist(), found["accuracy"].to_pylist(), strict=True))

    assert values("accuracy/all") == {0: 0.3, 1: 0.2} and values("accuracy/all", 1) == {0: 0.1, 1: 0.2}
    assert values("accuracy/all_current") == {1: 0.6} and values("accuracy/all_current", 1) == {0: 0.4, 1: 0.5}
    assert values("accuracy/val") == {0: 0.25, 1: 0.75}
    assert values("accuracy/participants") == values("accuracy/val_current") == {}


def test_targets_are_those_of_the_papers() -> None:
    """FedGH, Table 3 (CIFAR-10: 90 %; CIFAR-100: 50 % and 70 %); FedRAL, Table 4 (Dirichlet: 40 % and 9 %)."""
    assert TARGETS == {
        ("cifar10", "pathological"): (0.9,), ("cifar100", "pathological"): (0.5, 0.7),
        ("cifar10", "dirichlet"): (0.4,), ("cifar100", "dirichlet"): (0.09,),
    }  # fmt: skip


@pytest.mark.parametrize("metric", list(DRAWABLE))
def test_the_table_begins_with_the_metric_and_its_difference(tmp_path: Path, metric: str) -> None:
    for path in made(tmp_path).rglob("rounds.parquet"):
        rounds = pq.read_table(path)
        pq.write_table(rounds.append_column("accuracy/global", rounds["accuracy/all"]), path)
    shown = short_columns(compare(tmp_path, metric=metric, baseline="standalone"))
    measure = main_measure(metric, "last")
    assert [(one.kind, one.measure) for one in shown[1:3]] == [("mean", measure), ("difference", measure)]
