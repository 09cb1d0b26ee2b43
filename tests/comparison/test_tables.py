"""What a comparison prints and writes."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from raysim.comparison.compare import Comparison, compare
from raysim.comparison.measures import meaning_of
from raysim.comparison.pictures import curves, draw, pictures
from raysim.comparison.statistics import Estimate
from raysim.comparison.tables import chosen_columns, latex, print_comparison, variants_table, write_tables
from tests.cli.command import run
from tests.comparison.runs import make_run, rows_of


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
        ("last", Estimate(3, 0.5, 0.5, 0.5), "50.00 ± 0.00"),
        ("last", Estimate(3, 0.5), "50.00"),
        ("last", None, "-"),
        ("total_mib", Estimate(3, 12.0, 12.0, 12.0), "12"),
        ("total_gflop", Estimate(3, 0.0), "0"),
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


def test_a_narrow_terminal_gets_the_columns_below_each_other(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # as a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    narrow, wide = io.StringIO(), io.StringIO()
    print_comparison(comparison, narrow)
    monkeypatch.setenv("COLUMNS", "500")
    print_comparison(comparison, wide)
    lines = [re.sub(r"\x1b\[\d*m", "", line).rstrip(" \\") for line in narrow.getvalue().splitlines()]
    assert max(map(len, lines)) <= 60
    heads = [i for i, line in enumerate(lines) if line.startswith("variant")]
    assert len(heads) > 1
    assert all(lines[i + 1].startswith("fedgh ") and lines[i + 2].startswith("fd_x ") for i in heads)
    whole = [re.sub(r"\x1b\[\d*m", "", line).split() for line in wide.getvalue().splitlines()[:3]]
    for row, texts in enumerate(whole):
        assert [text for i in heads for text in lines[i + row].split()[1:]] == texts[1:]


def test_a_difference_names_its_measure_if_its_mean_is_not_beside_it(comparison: Comparison) -> None:
    def titles(*names: str) -> list[str]:
        return rows_of(variants_table(comparison, chosen_columns(comparison, names)))[0][1:]

    assert titles("last", "last.difference", "last.p_holm") == ["final accuracy", "vs fd_x", "p (Holm)"]
    assert titles("last", "total_mib", "last.difference", "n", "last.p_holm", "total_mib.difference") == [
        "final accuracy", "MiB", "final accuracy vs fd_x", "n", "p (Holm)", "MiB vs fd_x",
    ]  # fmt: skip


def test_python_shows_the_table(comparison: Comparison) -> None:
    shown = io.StringIO()
    print_comparison(comparison, shown)
    assert f"{comparison}" == repr(comparison)
    assert repr(comparison).split() == shown.getvalue().split()
    assert repr(comparison).startswith("variant") and "RunRecord" not in repr(comparison)


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
    panel = curves(comparison, "two-columns").axes[-1]
    assert panel.get_xlabel() == "virtual time (s)"
    assert {line.get_label(): line.get_xdata().tolist() for line in panel.lines} == {
        "fedgh": [0, 9, 18],
        "fd_x": [0, 2, 4],
    }


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
    shown = chosen_columns(other, ["last"])
    assert (
        "± is the standard deviation over seeds" in variants_table(other, shown).legend
        and "interval" not in variants_table(other, shown).legend
    )
    assert r"70.00 $\pm$ 10.00" in latex(other, shown)
    assert list(other.frame["low"]) == pytest.approx(list(comparison.frame["low"]), nan_ok=True)
    two = replace(compare(*sorted((tmp_path / "runs").glob("a[12]"))), spread="std")
    assert rows_of(variants_table(two, chosen_columns(two, ["last"])))[1] == [
        "fedgh",
        "65.00 ± 7.07",
    ]  # no interval, but a deviation
    assert any("no confidence intervals" in note for note in two.notes)
    one = replace(compare(tmp_path / "runs" / "a1"), spread="std")
    assert rows_of(variants_table(one, chosen_columns(one, ["last"])))[1] == ["fedgh", "60.00"]


def test_the_option_spread(comparison: Comparison, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "compare", str(tmp_path / "runs"), "--columns", "last", "--spread", "std")
    assert code == 0 and "70.00 ± 10.00" in out and "± is the standard deviation over seeds" in out


def test_a_legend_explains_the_columns_of_its_table(comparison: Comparison) -> None:
    def of(*names: str) -> str:
        return variants_table(comparison, chosen_columns(comparison, names)).legend

    assert "in %" in of("n", "last") and "95%" in of("n", "last")
    assert "paired" in of("last.difference") and "Holm" in of("last.p_holm") and "Holm" not in of("last")
    assert "Costs to a target" in of("rounds_to_0.5")


def test_latex(comparison: Comparison) -> None:
    text = latex(comparison)
    assert r"fd\_x" in text and r"worst 10\%" in text and r"$\pm$" in text and "booktabs" in text
    assert re.search(r"& \$[+-]\$\d", text)  # a sign, not a hyphen
    assert len({line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")}) == 1


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(comparison: Comparison, tmp_path: Path) -> None:
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}" + latex(comparison) + "\\end{document}"
    (tmp_path / "t.tex").write_text(document)
    done = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "t.pdf").stat().st_size > 0


def test_pictures(comparison: Comparison, tmp_path: Path) -> None:
    files = draw(comparison, tmp_path / "one")
    kinds, suffixes = ("curves", "clients", "architectures"), (".svg", ".png", ".pdf")
    assert {path.name for path in files} == {f"{kind}{suffix}" for kind in kinds for suffix in suffixes}
    again = draw(comparison, tmp_path / "two", (".svg", ".pdf"))
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files if path.suffix != ".png"]


def test_curves_are_means_with_intervals(comparison: Comparison) -> None:
    panel = curves(comparison, "two-columns", ["bytes"]).axes[0]
    line, band = panel.lines[0], panel.collections[0].get_paths()[0].vertices
    assert line.get_xdata()[-1] == 3 * 2 and panel.get_xlabel().endswith("(MiB)")
    found = comparison.estimate(str(line.get_label()), "last")
    assert found is not None and found.low is not None
    assert line.get_ydata()[-1] == pytest.approx(found.mean)
    assert band[:, 1].min() == pytest.approx(max(comparison.means["fedgh"][0].low or 0, 0))


def test_many_variants_are_drawn_task_by_task(tmp_path: Path) -> None:
    for data in ("digits", "cifar10", "cifar100"):
        for method in ("fedgh", "standalone", "fd"):
            make_run(tmp_path / data / method, method, algorithm={}, data={"name": data})
    drawn = pictures(compare(tmp_path), "two-columns")
    assert [picture.name for picture in drawn if picture.kind == "curves"] == [
        "curves-data.name-cifar10", "curves-data.name-cifar100", "curves-data.name-digits",
    ]  # fmt: skip
    (axes, *_) = drawn[0].figure.axes
    assert [line.get_label() for line in axes.lines] == ["fd", "fedgh", "standalone"]
    assert len(pictures(compare(tmp_path / "digits"), "two-columns")) == 3


def test_a_target_of_one_has_measures() -> None:
    assert meaning_of("mib_to_1") and meaning_of("rounds_to_1") == meaning_of("rounds_to_0.5")
    assert meaning_of("rounds_to_1.5") is meaning_of("rounds_to_10") is None
