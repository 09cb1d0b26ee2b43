"""What a comparison prints and writes."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from raysim.study.compare import Comparison, compare
from raysim.study.pictures import curves, draw
from raysim.study.statistics import Estimate
from raysim.study.tables import chosen_columns, latex, number, print_comparison, variants_table, write_tables
from tests.cli.command import run
from tests.study.runs import make_run, rows_of


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Two variants; one of the three runs of the second never reaches 50 %."""
    for seed, best in ((1, 0.6), (2, 0.7), (3, 0.8)):
        make_run(tmp_path / "runs" / f"a{seed}", seed=seed, accuracy=[0.1, 0.4, best])
        make_run(tmp_path / "runs" / f"b{seed}", "fd_x", seed, accuracy=[0.1, 0.2, best - 0.25])
    return compare(tmp_path / "runs", targets=[0.5], baseline="fd_x")


@pytest.mark.parametrize(
    ("measure", "found", "text"),
    [
        ("last", Estimate(3, 0.51234, 0.50234, 0.52234), "51.23 ± 1.00"),
        ("last", Estimate(3, 0.5), "50.00"),
        ("last", None, "-"),
        ("rounds_to_0.5", Estimate(3, 2.5, 2.0, 3.0), "2.5 ± 0.5"),
    ],
)
def test_cells(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, measure: str, found: Estimate | None, text: str
) -> None:
    monkeypatch.setattr(Comparison, "estimate", lambda self, variant, measure: found)
    assert rows_of(variants_table(comparison, chosen_columns(comparison, [measure])))[1][1] == text


def test_the_terminals_table(comparison: Comparison) -> None:
    shown = io.StringIO()
    print_comparison(comparison, shown)
    lines = shown.getvalue().splitlines()
    titles = "variant n final accuracy vs fd_x p (Holm) best part. worst 10% MiB GFLOP rounds to 50%"
    assert " ".join(lines[0].split()) == titles
    assert "+25.00" in lines[1] and lines[1].startswith("fedgh")
    assert lines[2].startswith("fd_x") and lines[2].endswith("1 of 3")  # no mean of the one that is fast enough
    assert lines[1].endswith(" 2")
    assert "vs fd_x: the difference to fd_x, paired over seeds." in shown.getvalue()


def test_virtual_time_where_runs_have_it(tmp_path: Path) -> None:
    """The faster rounds reach the target later in rounds, and earlier in virtual time."""
    make_run(tmp_path / "runs" / "a", accuracy=[0.1, 0.6, 0.7], virtual_s=9.0)
    make_run(tmp_path / "runs" / "b", "fd_x", accuracy=[0.1, 0.4, 0.6], virtual_s=2.0)
    make_run(tmp_path / "runs" / "c", "fd_y", accuracy=[0.1, 0.4, 0.6])
    comparison = compare(tmp_path / "runs", targets=[0.5])
    found = {name: comparison.measured[name] for name in ("fedgh", "fd_x", "fd_y")}
    assert [list(of["rounds_to_0.5"].values()) for of in found.values()] == [[1.0], [2.0], [2.0]]
    assert [list(of.get("virtual_s_to_0.5", {}).values()) for of in found.values()] == [[9.0], [4.0], []]
    assert [list(of.get("virtual_s", {}).values()) for of in found.values()] == [[18.0], [4.0], []]
    assert [list(of.get("dropped", {}).values()) for of in found.values()] == [[4.0], [4.0], []]
    shown = io.StringIO()
    print_comparison(comparison, shown)
    assert "virtual s" in shown.getvalue() and "virtual s to 50%" in shown.getvalue()


def test_the_files(comparison: Comparison, tmp_path: Path) -> None:
    files = write_tables(comparison, tmp_path / "out")
    assert [path.name for path in files] == ["comparison.tex", "comparison.csv", "runs.csv"]
    frame = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert list(frame["mean"]) == pytest.approx(list(comparison.frame["mean"]), nan_ok=True)
    runs = pd.read_csv(tmp_path / "out" / "runs.csv")
    assert list(zip(runs["variant"], runs["seed"], strict=True)) == [
        (v, s) for v in ("fedgh", "fd_x") for s in (1, 2, 3)
    ]
    repeat = "--set output=repeated --set 'tracking={}'"
    assert runs["command"][0] == f"raysim launch {tmp_path / 'runs' / 'a1' / 'resolved.yaml'} {repeat}"
    assert {"variant", "measure", "n", "std", "low", "high", "difference", "seeds", "values"} < set(frame.columns)


def test_standard_deviations_in_place_of_intervals(comparison: Comparison, tmp_path: Path) -> None:
    # The last accuracies are 0.6, 0.7 and 0.8, and 0.35, 0.45 and 0.55: all paired differences are 0.25.
    other = replace(comparison, spread="std")
    assert rows_of(variants_table(other, chosen_columns(other, ["last", "last.difference"]))) == [
        ["variant", "final accuracy", "vs fd_x"],
        ["fedgh", "70.00 ± 10.00", "+25.00 ± 0.00"],
        ["fd_x", "45.00 ± 10.00", "-"],
    ]
    assert list(other.frame["low"]) == pytest.approx(list(comparison.frame["low"]), nan_ok=True)
    two = replace(compare(*sorted((tmp_path / "runs").glob("a[12]"))), spread="std")
    assert rows_of(variants_table(two, chosen_columns(two, ["last"])))[1] == [
        "fedgh",
        "65.00 ± 7.07",
    ]  # no interval, but a deviation
    assert any("no confidence intervals" in note for note in two.notes)


def test_latex(comparison: Comparison) -> None:
    text = latex(comparison)
    assert r"fd\_x" in text and r"worst 10\%" in text and r"$\pm$" in text and "booktabs" in text
    assert re.search(r"& \$[+-]\$\d", text)  # a sign, not a hyphen
    assert len({line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")}) == 1


def test_pictures(comparison: Comparison, tmp_path: Path) -> None:
    files = draw(comparison, tmp_path / "one")
    kinds, suffixes = ("curves", "clients", "architectures"), (".svg", ".png", ".pdf")
    assert {path.name for path in files} == {f"{kind}{suffix}" for kind in kinds for suffix in suffixes}
    again = draw(comparison, tmp_path / "two", (".svg",))
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files if path.suffix == ".svg"]


def test_curves_are_means_with_intervals(comparison: Comparison) -> None:
    panel = curves(comparison, "two-columns", ["bytes"]).axes[0]
    line, band = panel.lines[0], panel.collections[0].get_paths()[0].vertices
    assert line.get_xdata()[-1] == 3 * 2 and panel.get_xlabel().endswith("(MiB)")
    found = comparison.estimate(str(line.get_label()), "last")
    assert found is not None and found.low is not None
    assert line.get_ydata()[-1] == pytest.approx(found.mean)
    assert band[:, 1].min() == pytest.approx(max(comparison.means["fedgh"][0].low or 0, 0))


@pytest.mark.parametrize(
    ("value", "measure", "sign", "text"),
    [
        (0.12345, "last", False, "12.35"),
        (0.5, "last", True, "+50.00"),
        (-1e-17, "last", True, "0.00"),  # an error of rounding has no sign
        (0.00034567, "total_mib", False, "0.0003457"),
        (10912.29, "total_mib", False, "10912"),
        (math.nan, "total_mib", False, "nan"),  # of a run that diverged
    ],
)
def test_numbers(value: float, measure: str, sign: bool, text: str) -> None:
    assert number(value, measure, sign) == text


@pytest.mark.usefixtures("undrawn")
def test_columns_are_chosen_by_name(comparison: Comparison, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["compare", str(tmp_path / "runs"), "--baseline", "fd_x", "-o", str(tmp_path / "out"), "--spread", "std"]
    code, out, _ = run(capfd, *words, "--columns", "worst_decile, last.difference,last.p_holm,n,total_mib")
    assert code == 0
    assert " ".join(out.splitlines()[0].split()) == "variant worst 10% final accuracy vs fd_x p (Holm) n MiB"
    assert "+25.00 ± 0.00" in out and r"worst 10\%" in (tmp_path / "out" / "comparison.tex").read_text()
    code, _, error = run(capfd, *words, "--columns", "lasst")
    assert code == 2 and "did you mean 'last'?" in error
