"""`--select val`: each run counts in the round that its validation samples select."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.common.errors import ScenarioError
from raysim.study.compare import Comparison, compare
from raysim.study.runs import find_runs
from raysim.study.tables import variants_table
from tests.cli.command import run as command
from tests.study.runs import make_run, rows_of

ACCURACY, VAL = (0.1, 0.3, 0.6, 0.5, 0.7), (0.9, 0.2, 0.3, 0.3, 0.1)
"""Round 2 is the first with the greatest validation accuracy; round 0 does not count."""


def made(folder: Path) -> Path:
    for seed in (1, 2, 3):
        less = [value - 0.01 * seed for value in ACCURACY]
        make_run(folder / f"a{seed}", seed=seed, accuracy=less, val=VAL)
        make_run(
            folder / f"b{seed}", "standalone", seed, accuracy=[0.1, 0.2, 0.2, 0.65, 0.1], val=(0, 0.1, 0.2, 0.4, 0.3)
        )
    return folder


def mean(comparison: Comparison, variant: str, measure: str) -> float | None:
    found = comparison.estimate(variant, measure)
    return found and found.mean


def test_measures_of_the_selected_round(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy=ACCURACY, val=VAL)
    (run,) = find_runs([tmp_path])
    last = run.measures([0.3])
    shared = {"at_best_val": 0.6, "val": 0.1, "best_val": 0.3, "best_val_round": 2.0, "last": 0.7, "best": 0.7}
    assert {name: last[name] for name in shared} == pytest.approx(shared)
    assert (last["worst_decile"], last["rounds_to_0.3"]) == (pytest.approx(0.6), 1)
    assert run.clients_of("last")["accuracy"].to_pylist() == pytest.approx([0.8, 0.6])

    (variant,) = compare(tmp_path, select="val").variants
    (run,) = variant.runs
    selected = run.measures([0.3], "val")
    assert {name: selected[name] for name in shared} == pytest.approx(shared)
    assert (selected["worst_decile"], selected["rounds_to_0.3"]) == (pytest.approx(0.5), 2)
    assert (selected["mib_to_0.3"], selected["total_mib"]) == (6, 12)
    assert run.clients_of("at_best_val")["accuracy"].to_pylist() == pytest.approx([0.7, 0.5])


def test_tables_show_the_selected_round(tmp_path: Path) -> None:
    by_last = compare(made(tmp_path), baseline="standalone", targets=[0.3])
    by_val = compare(tmp_path, baseline="standalone", targets=[0.3], select="val")
    assert by_last.main == "last" and by_val.main == "at_best_val"
    assert (mean(by_last, "fedgh", "last"), mean(by_val, "fedgh", "at_best_val")) == pytest.approx((0.68, 0.58))
    assert mean(by_last, "standalone", "rounds_to_0.3") == mean(by_val, "standalone", "rounds_to_0.3") == 3
    assert (mean(by_last, "fedgh", "rounds_to_0.3"), mean(by_val, "fedgh", "rounds_to_0.3")) == (2, 2)
    assert "accuracy/val" in variants_table(by_val).legend and "accuracy/all" in variants_table(by_last).legend


def test_runs_without_validation_samples_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", val=(0.1, 0.2, 0.3, 0.4))
    make_run(tmp_path / "b", seed=2)
    make_run(tmp_path / "c", seed=3)
    with pytest.raises(ScenarioError, match=f"^--select: val given, but {tmp_path / 'b'}"):
        compare(tmp_path, select="val")
    code, _, err = command(capfd, "compare", str(tmp_path), "--select", "val")
    assert code == 2 and "--select" in err


CURRENT, VAL_CURRENT = (0.9, 0.2, 0.4, 0.8, 0.3), (0.9, 0.1, 0.2, 0.5, 0.5)
"""Round 3 is the first with the greatest validation accuracy of current networks."""


def made_current(folder: Path) -> Path:
    for seed in (1, 2, 3):
        for method, less in (("fedgh", 0.01), ("standalone", 0.1)):
            current = [value - less * seed for value in CURRENT]
            make_run(
                folder / f"{method}{seed}",
                method,
                seed,
                ACCURACY,
                val=VAL,
                current=current,
                val_current=VAL_CURRENT,
            )
    return folder


@pytest.mark.usefixtures("undrawn")
def test_the_validation_accuracy_of_current_networks_selects_the_round(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison = compare(made_current(tmp_path), baseline="standalone", targets=[0.5], select="val_current")
    expected = {
        "at_best_val_current": 0.78, "best_val_current": 0.5, "best_val_current_round": 3, "val_current": 0.5,
        "worst_decile_current": 0.73, "worst_decile": 0.4, "last_current": 0.28, "at_best_val": 0.6,
        "rounds_to_0.5": 3,
    }  # fmt: skip
    assert {name: mean(comparison, "fedgh", name) for name in expected} == pytest.approx(expected)
    head, *_ = rows_of(variants_table(comparison))
    assert head[2:9] == [
        "current test at best val.", "vs standalone", "p (Holm)", "worst 10% current", "max val. current",
        "max val. current round", "MiB",
    ]  # fmt: skip
    (first, *_) = comparison.variants
    (run, *_) = first.runs
    assert run.clients_of("at_best_val_current")["accuracy"].to_pylist() == pytest.approx([0.84, 0.74])
    words = [str(tmp_path), "--select", "val_current", "-o", str(tmp_path / "c")]
    code, out, _ = command(capfd, "compare", *words)
    assert code == 0 and "current test at best val." in out and (tmp_path / "c" / "clients.png").stat().st_size
