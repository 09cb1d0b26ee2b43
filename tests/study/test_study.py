"""`raysim.Study`: a sweep file from Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import raysim
from tests.conftest import REPOSITORY
from tests.engine.scenarios import plain_digits as digits


def test_a_study_that_was_not_run(workplace: Path) -> None:
    Path("sweep.yaml").write_text(
        yaml.safe_dump({"base": digits(output="out"), "grid": {"algorithm.name": ["fedgh", "fd"]}, "seeds": "1..2"})
    )
    study = raysim.Study("sweep.yaml", seeds="3")
    assert study.cells[["name", "label", "seed", "state", "rounds"]].to_numpy().tolist() == [
        ["fedgh seed=3", "fedgh", 3, "waiting", 0],
        ["fd seed=3", "fd", 3, "waiting", 0],
    ]
    assert study.runs == {}
    assert repr(study) == f"Study('sweep', 2 cells in {str(study.folder)!r})"
    for call in (study.compare, lambda: study.report("report.html")):
        with pytest.raises(raysim.ScenarioError, match="out/sweep"):
            call()
    assert not study.folder.exists()


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_python_of_the_page_on_comparisons(workplace: Path) -> None:
    (workplace / "scenarios").symlink_to(REPOSITORY / "scenarios")
    page = (REPOSITORY / "docs" / "comparison.md").read_text(encoding="utf-8")
    code, _ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "comparison.md", "exec"), names)
    study, run, frame = names["study"], names["run"], names["comparison"].frame
    assert list(study.cells["state"]) == ["done", "done"] and list(study.cells["rounds"]) == [3, 3]
    assert list(study.runs) == ["fedgh", "standalone"]
    assert run.status == "finished" and run.scenario.method == "fedgh"
    last = run.rounds["accuracy/all"].iloc[-1]
    assert frame.query("variant == 'fedgh' and measure == 'last'")["mean"].item() == pytest.approx(last)
    assert "standalone" in Path("report.html").read_text(encoding="utf-8")
    assert "at best val." in study.report("val.html", select="val").read_text(encoding="utf-8")
    selected = study.compare(select="val").estimate("fedgh", "at_best_val")
    assert selected is not None and selected.mean == run.rounds["accuracy/at_best_val"].iloc[-1]
    assert study.run() is study  # nothing is left to do


@pytest.mark.large
def test_the_tables_and_figures_of_the_page_on_comparisons(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    for alpha in (0.1, 1.0):
        data = {"name": "digits", "partition": {"name": "dirichlet", "alpha": alpha}}
        sets = ["name=alphas", "rounds=1", "algorithm.name=fedtgp"]
        run = raysim.run(digits(data=data), sets=sets, quiet=True)
    page = (REPOSITORY / "docs" / "comparison.md").read_text(encoding="utf-8")
    _, code = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(code, "comparison.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"alpha +0\.1 +1\.0\n", printed) and "fedtgp" in printed
    assert f"{100 * run.rounds['accuracy/all'].iloc[-1]:.4f}"[:6] in printed
