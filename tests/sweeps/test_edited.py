"""The same command after the sweep file was edited."""

from __future__ import annotations

from pathlib import Path

from raysim.sweeps.loop import run_sweep
from tests.conftest import REPOSITORY
from tests.sweeps.test_loop import sweep_of
from tests.sweeps.test_tuning import Pool, pool

__all__ = ["pool"]  # the fixture


def test_another_baseline_and_other_targets_are_compared(pool: Pool, workplace: Path) -> None:
    def table() -> str:
        (path,) = (workplace / "runs" / "sweep" / "comparison").glob("*.tex")
        return path.read_text()

    run_sweep(sweep_of(workplace, baseline="standalone", targets=[0.05]))
    assert "vs standalone" in table() and r"5\%" in table()
    run_sweep(sweep_of(workplace, baseline="fedgh", targets=[0.05]))
    assert "vs fedgh" in table()
    run_sweep(sweep_of(workplace, baseline="fedgh", targets=[0.11]))
    assert r"11\%" in table()
    assert pool.tasks == 2  # no cell was run again


def test_a_cell_whose_code_was_edited_meanwhile_waits_and_the_others_run(pool: Pool, workplace: Path) -> None:
    template = (REPOSITORY / "raysim" / "cli" / "templates" / "algorithm.py").read_text().replace("NewMethod", "Mine")
    (workplace / "mine.py").write_text(template)
    sweep = sweep_of(workplace, grid={"algorithm.name": ["./mine.py", "standalone"]})
    (workplace / "mine.py").write_text(f"{template}\n\nEDITED = True\n")
    mine, standalone = run_sweep(sweep)
    assert (mine.state, standalone.state) == ("waiting", "done")
    assert "was edited after the sweep began" in mine.reason
