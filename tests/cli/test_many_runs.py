"""`raysim sweep` and `raysim compare` as commands, without starting anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run
from tests.comparison.runs import make_run
from tests.conftest import REPOSITORY

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")


def test_a_dry_run_lists_cells(capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
    grid = ["--grid", "algorithm.name=fedgh,standalone", "--grid", "training.lr=0.1"]
    code, out, _ = run(capfd, "sweep", QUICKSTART, *grid, "--seeds", "1..2", "--dry-run")
    assert code == 0
    *cells, counted, total = out.splitlines()
    names = [f"{m} training.lr=0.1 seed={s}" for m in ("fedgh", "standalone") for s in (1, 2)]
    assert [(line[:21].split(), line[46:]) for line in cells] == [(["waiting", "0/20"], name) for name in names]
    assert [line[35:44].strip() for line in cells] == ["309 KiB", "309 KiB", "0 B", "0 B"]
    assert counted == "4 waiting" and total.startswith("about ") and total.endswith(" at a time")
    assert not list(workplace.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.yaml"], "raysim: missing.yaml: there is no such file"),
        ([QUICKSTART, "--grid", "training.lx=1"], "--set training.lx=1: training.lx: unknown key"),
        ([QUICKSTART, "--grid", "training.lr="], "grid.training.lr: [] given; allowed: a list with at least one value"),
        ([QUICKSTART, "--seeds", "x"], "seeds: 'x' given; allowed: a list of integers, or a range such as 1..5"),
        ([QUICKSTART, "--grid", "training.lr=1,1.0"], "are the same run; remove one"),
    ],
)
def test_bad_sweeps(capfd: pytest.CaptureFixture[str], workplace: Path, words: list[str], sentence: str) -> None:
    code, out, error = run(capfd, "sweep", *words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert sentence in error
    assert not list(workplace.iterdir())


def test_compare(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        make_run(tmp_path / "runs" / f"a{seed}", seed=seed)
        make_run(tmp_path / "runs" / f"b{seed}", "standalone", seed, accuracy=[0.1, 0.2, 0.3, 0.4 + 0.01 * seed])
    folder = tmp_path / "out"
    words = ["--baseline", "standalone", "--target", "0.4", "-o", str(folder)]
    code, out, error = run(capfd, "compare", str(tmp_path / "runs"), *words)
    assert (code, error) == (0, "")
    assert out.startswith("variant") and "+8.00 ± 2.48" in out and "rounds to 40%" in out
    assert str(folder / "comparison.tex") in out and (folder / "curves.svg").exists()
    code, out, error = run(capfd, "compare", str(tmp_path / "nothing"))
    assert (code, out, error.count("\n")) == (2, "", 1)


def test_compare_takes_a_sweep_file(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(f"base: {QUICKSTART}\nset: [output={tmp_path / 'runs'}]\nseeds: [1]\n")
    code, out, error = run(capfd, "compare", str(file))
    assert (code, out, error.count("\n")) == (2, "", 1) and f"{tmp_path / 'runs' / 'one'}: " in error
    make_run(tmp_path / "runs" / "one" / "cell" / "run")
    code, out, error = run(capfd, "compare", str(file))
    assert (code, error) == (0, "") and out.startswith("variant")
