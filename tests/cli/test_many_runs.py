"""`raysim sweep` and `raysim compare` as commands, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import run
from tests.conftest import REPOSITORY
from tests.data.own import scenario
from tests.engine.scenarios import digits

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")


def test_a_dry_run_lists_cells(capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
    grid = ["--grid", "algorithm.name=fedgh,standalone", "--grid", "training.lr=0.1"]
    code, out, _ = run(capfd, "sweep", QUICKSTART, *grid, "--seeds", "1..2", "--dry-run")
    assert code == 0
    _, *cells, counted, _ = out.splitlines()
    names = [f"{m} training.lr=0.1 seed={s}" for m in ("fedgh", "standalone") for s in (1, 2)]
    assert [line.split(maxsplit=2) for line in cells] == [["waiting", "0/20", name] for name in names]
    assert counted == "4 waiting"
    assert not list(workplace.iterdir())


@pytest.mark.parametrize(
    ("base", "values", "word"),
    [
        ({}, [5000, 8], "5000"),
        (scenario({"name": "csv", "path": "none.csv"}), [2], "none.csv"),
    ],
    ids=["clients", "data"],
)
def test_a_dry_run_refuses_a_cell_that_can_never_run(
    capfd: pytest.CaptureFixture[str], workplace: Path, base: dict[str, Any], values: list[int], word: str
) -> None:
    Path("sweep.yaml").write_text(yaml.safe_dump({"base": base or digits(), "grid": {"clients.count": values}}))
    code, _, err = run(capfd, "sweep", "sweep.yaml", "--dry-run")
    assert code == 2 and f"clients.count={values[0]}" in err and word in err
