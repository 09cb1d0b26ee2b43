"""LaTeX tables: chosen columns, digits and units of a column, marks of the best means, siunitx."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.common.errors import ScenarioError
from raysim.comparison.compare import Comparison, compare
from raysim.comparison.formats import latex
from raysim.comparison.published import Published
from raysim.comparison.statistics import Estimate, Spread
from raysim.comparison.tables import Column, Scale, best_of, chosen_columns, scale_of, variants_table
from tests.cli.command import run
from tests.comparison.runs import make_run


def compared(
    folder: Path, accuracies: Mapping[str, Sequence[float]], baseline: str | None = None, **changes: object
) -> Comparison:
    """A comparison of methods with these last accuracies, one per seed from 1 on."""
    for method, values in accuracies.items():
        for seed, value in enumerate(values, 1):
            make_run(folder / f"{method}{seed}", method, seed, [0.0, 0.2, value], **changes)
    return compare(folder, baseline=baseline, targets=[])


A, B, C = [0.90, 0.92, 0.94], [0.80, 0.82, 0.841], [0.50, 0.521, 0.54]


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        # Every paired difference is constant up to 0.001: all three pairs have p < 0.001.
        ({"c": C, "b": B, "a": A}, {"a"}),
        ({"a": A}, set()),
        # Differences 0.1, -0.1 and 0.1 of the two best: p = 0.67.
        ({"a": [0.9, 0.8, 0.9], "b": [0.8, 0.9, 0.8], "c": [0.1, 0.11, 0.12]}, set()),
        # The second and the third do not differ, the best does from both.
        ({"a": A, "b": [0.5, 0.6, 0.5], "c": [0.5, 0.5, 0.6]}, {"a"}),
        ({"a": A, "b": A, "c": C}, set()),  # equal
        ({"a": A[:2], "b": B[:2], "c": C[:2]}, set()),  # two seeds: no test
        # Differences 0.02, 0.03 and 0.04: p = 0.035, less than 0.05 alone, and 0.104 corrected for three pairs, of
        # which it has the greatest p.
        ({"a": [0.90, 0.92, 0.94], "b": [0.88, 0.89, 0.90]}, {"a"}),
        ({"a": [0.90, 0.92, 0.94], "b": [0.88, 0.89, 0.90], "c": [0.86, 0.87, 0.88], "d": [0.859, 0.87, 0.881]}, set()),
    ],
)  # fmt: skip
def test_the_best(tmp_path: Path, accuracies: Mapping[str, Sequence[float]], best: set[str]) -> None:
    assert best_of(compared(tmp_path, accuracies), "last") == best


def test_a_smaller_cost_to_a_target_is_better_and_other_costs_are_not_ranked(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        make_run(tmp_path / f"a{seed}", "fast", seed, [0.0, 0.6, 0.6, 0.6])
        make_run(tmp_path / f"b{seed}", "slow", seed, [0.0, 0.1, 0.1, 0.9])
        make_run(tmp_path / f"c{seed}", "never", seed, [0.0, 0.1, 0.1, 0.6 if seed == 1 else 0.1])
        make_run(tmp_path / f"d{seed}", "silent", seed, [0.0, 0.1, 0.6, 0.6], mib=0)
    comparison = compare(tmp_path, targets=[0.5])
    assert best_of(comparison, "rounds_to_0.5") == best_of(comparison, "mib_to_0.5") == {"fast"}
    assert best_of(comparison, "total_mib") == set()
    text = latex(comparison, chosen_columns(comparison, ["rounds_to_0.5", "mib_to_0.5", "total_mib"]))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert r"fast & \textbf{1} & \textbf{3} & 9 \\" in lines
    assert r"never & 1 of 3 & 1 of 3 & 9 \\" in lines and r"silent & 2 & - & - \\" in lines


def test_every_task_has_its_best(tmp_path: Path) -> None:
    compared(tmp_path / "one", {"a": A, "b": B}, data={"name": "digits"})
    compared(tmp_path / "two", {"a": C, "b": B}, data={"name": "cifar10"})
    assert {name.split()[0] for name in best_of(compare(tmp_path), "last")} == {"a", "b"}


def test_the_best_is_bold_and_the_rule_is_a_comment(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"a_$": A, "b": B, "c": C}, "b")
    text = latex(comparison)
    assert re.search(r"^a\\_\\\$ & 3 & \\textbf\{92\.00 \$\\pm\$ \d\.\d\d\} & \$\+\$9", text, re.MULTILINE)
    assert "% Bold: " in text and r"\toprule" in text
    assert "Bold" not in latex(comparison, chosen_columns(comparison, ["n", "total_mib"]))


@pytest.mark.parametrize(
    ("values", "title", "shown"),
    [
        ([0.5, 12.25], "MiB", ["0.500", "12.250"]),
        ([3 * 2.0**10, 2.0**20], "GiB", ["3", "1024"]),
        ([2.0**-10, 2.0**-12], "KiB", ["1.000", "0.250"]),
        ([2.0**11, 100 / 2.0**10], "KiB", ["2097152", "100"]),  # in MiB, 100 KiB would have two digits
        ([12.0, 9.0], "MiB", ["12", "9"]),
        ([0.0, 0.0], "MiB", ["0", "0"]),
        ([0.0, 3.0 / 2**10], "KiB", ["0", "3"]),
    ],
)
def test_a_column_has_one_unit_and_one_number_of_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Sequence[float], title: str, shown: list[str]
) -> None:
    comparison = compared(tmp_path, {"a": A, "b": B})
    of = dict(zip("ab", values, strict=True))
    monkeypatch.setattr(Comparison, "estimate", lambda self, variant, measure: Estimate(1, of[variant]))
    scale = scale_of(comparison, Column("mean", "total_mib"))
    assert (scale.title, [scale(value) for value in values]) == (title, shown)


def test_published_values_count_for_the_unit_and_have_their_own_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In GiB, 0.5 MiB would be 0.000. Of 2048, 2048 and 0.5 MiB the unit is that of 10 * 0.5 = 5 MiB.
    comparison = compared(tmp_path, {"a": A, "b": B})
    monkeypatch.setattr(Comparison, "estimate", lambda self, variant, measure: Estimate(1, 2048.0))
    monkeypatch.setattr(
        Comparison, "published", lambda self, variant: {"total_mib": Published("X", 2, "total_mib", 0.5)}
    )
    mean, published = (scale_of(comparison, Column(kind, "total_mib")) for kind in ("mean", "published"))
    assert mean.title == published.title == "MiB"
    assert (mean(2048.0), published(0.5)) == ("2048", "0.500")


@pytest.mark.parametrize(
    ("a", "b", "spread", "shown"),
    [
        (Estimate(3, 12.0, 11.5, 12.5, std=0.0), 9.0, "interval", ["12.00", "9.00"]),  # ± 0.5; three digits of 9
        (Estimate(3, 12.0, 12.0, 12.0, std=0.5), 9.0, "interval", ["12", "9"]),
        (Estimate(2, 12.0, std=0.5), 9.0, "std", ["12.00", "9.00"]),
        (Estimate(1, math.nan), 12.3, "interval", ["nan", "12.3"]),  # of a run that diverged
        (Estimate(1, math.inf), 12.0, "interval", ["inf", "12"]),
        (Estimate(1, math.inf), math.inf, "interval", ["inf", "inf"]),
    ],
)
def test_digits_follow_what_is_shown_after_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a: Estimate, b: float, spread: Spread, shown: list[str]
) -> None:
    comparison = replace(compared(tmp_path, {"a": A, "b": B}), spread=spread)
    of = {"a": a, "b": Estimate(3, b, b, b, std=0.0)}
    monkeypatch.setattr(Comparison, "estimate", lambda self, variant, measure: of[variant])
    scale = scale_of(comparison, Column("mean", "total_mib"))
    assert [scale(a.mean), scale(b)] == shown


def test_a_difference_much_smaller_than_the_means_has_its_own_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = compared(tmp_path, {"a": A, "b": B}, baseline="b")
    of = {"a": Estimate(3, 5120.3, 5120.3, 5120.3 + 1e-11), "b": Estimate(3, 5120.0)}
    less = {"a": Estimate(3, 0.3, 0.2, 0.4), "b": None}
    monkeypatch.setattr(Comparison, "estimate", lambda self, variant, measure: of[variant])
    monkeypatch.setattr(Comparison, "difference", lambda self, variant, measure: less[variant])
    shown = chosen_columns(comparison, ["total_mib", "total_mib.difference"])
    # In GiB: 0.3 / 1024 = 0.000293. The interval of the mean is an error of rounding.
    rows = variants_table(comparison, shown).rows
    assert rows[0] == ["variant", "GiB", "vs b"] and rows[1] == ["a", "5.00", "+0.00029 ± 0.00010"]


def test_numbers() -> None:
    scale = Scale("last", 100.0, 2)
    assert [scale(0.5, True), scale(-0.5, True), scale(0.12345)] == ["+50.00", "-50.00", "12.35"]
    # The sign of a difference remains when its digits do not; an error of rounding has no sign.
    assert [scale(-1e-9, True), scale(1e-9, True), scale(0.0, True), scale(-1e-17, True)] == [
        "-0.00", "+0.00", "0.00", "0.00",
    ]  # fmt: skip


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` writes its tables only: drawing takes seconds."""
    monkeypatch.setattr("raysim.comparison.pictures.draw", lambda *_, **__: [])


@pytest.mark.usefixtures("no_pictures")
def test_columns_are_chosen_by_name(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    compared(tmp_path / "runs", {"fedgh": A, "fd": B})
    words = ["compare", str(tmp_path / "runs"), "--baseline", "fd", "-o", str(tmp_path / "out")]
    code, out, _ = run(capfd, *words, "--columns", "worst_decile, last.difference,last.p_holm,n,total_mib")
    assert code == 0
    assert " ".join(out.splitlines()[0].split()) == "variant worst 10% final accuracy vs fd p (Holm) n MiB"
    text = (tmp_path / "out" / "comparison.tex").read_text()
    assert r"worst 10\%" in text and "final accuracy vs fd" in text
    for name, words_of in (
        ("lasst", "did you mean 'last'?"),
        ("last.published", "last.published given"),
        ("", "--columns:  given"),
        ("rounds_to_0.9", "--target"),
        ("rounds_to_0.990", "rounds_to_0.99 given"),
    ):
        code, _, error = run(capfd, *words, "--target", "0.99", "--columns", name)
        assert code == 2 and words_of in error and error.count("\n") == 1
    with pytest.raises(ScenarioError, match="--baseline"):
        chosen_columns(compare(tmp_path / "runs", targets=[0.5]), ["rounds_to_0.5.difference"])
