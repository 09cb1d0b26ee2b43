"""What a worker gets of a cell, and what is said of how it ended. Without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.common.errors import ScenarioError
from raysim.engine.stop import Stop
from raysim.runs.run import Run
from raysim.sweeps.cells import Sweep
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.workers import CellTask, prepared, run_cell
from tests.conftest import REPOSITORY
from tests.engine.scenarios import digits


class Parent:
    """Of a sweep in MLflow."""

    uri = "sqlite:////store/mlflow.db"

    def tags(self) -> dict[str, str]:
        return {"mlflow.parentRunId": "p1"}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    scenario: dict[str, Any] = digits(
        data={**digits()["data"], "root": "~/data"},
        checkpoint={"folder": "saved"},
        tracking={"tags": {"who": "me"}},
        init={"run": "runs/tiny/r1"},
    )
    (tmp_path / "runs" / "tiny" / "r1").mkdir(parents=True)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": scenario}))
    return load_sweep("sweep.yaml")


def test_a_task_means_the_same_in_any_folder(sweep: Sweep, tmp_path: Path) -> None:
    (cell,) = sweep.cells
    scenario = prepared(cell, sweep, Parent(), "ray").scenario  # type: ignore[arg-type]
    assert (scenario.data.root, scenario.checkpoint.folder) == ("/home/me/data", str(tmp_path / "saved"))
    assert scenario.init is not None and scenario.init.run == str(tmp_path / "runs" / "tiny" / "r1")
    assert (scenario.backend, scenario.tracking.uri) == ("ray", Parent.uri)
    tags = {"who": "me", "mlflow.parentRunId": "p1", "sweep": "sweep", "cell": "base"}
    assert (scenario.tracking.tags, scenario.tracking.experiment) == (tags, "sweep")


def test_a_field_called_path_of_ones_own_partition_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fields = "@dataclass(frozen=True)\nclass Mine:\n    path: int = 3\n"
    code = f"from dataclasses import dataclass\n\n{fields}\n    def shares(self, *given): ...\n"
    (tmp_path / "mine.py").write_text(code)
    data = {**digits()["data"], "partition": {"name": "./mine.py:Mine", "path": 4}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": digits(data=data)}))
    sweep = load_sweep("sweep.yaml")
    cell = prepared(sweep.cells[0], sweep, Parent(), "ray")  # type: ignore[arg-type]
    assert cell.scenario.data.partition.path == 4


@pytest.mark.parametrize(
    "name", ["exp #2", "a: b", "\U0001f680", "two  spaces", "[", "'", "a\x85b", "a\x7fb", "a\x90b"]
)
def test_a_folder_of_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    scenario = digits(data={**digits()["data"], "root": "data"}, tracking={"tags": {"who": name}}, output="runs")
    Path("sweep.yaml").write_text(yaml.safe_dump({"base": scenario}))
    sweep = load_sweep("sweep.yaml")
    (cell,) = sweep.cells
    parsed = prepared(cell, sweep, Parent(), "ray").scenario  # type: ignore[arg-type]
    assert parsed.output == str(sweep.output) == str(tmp_path / name / "runs" / "sweep")
    assert (parsed.data.root, parsed.tracking.tags["who"]) == (str(tmp_path / name / "data"), name)


def test_a_cell_is_not_begun_after_its_base_was_edited(tmp_path: Path) -> None:
    """Its folder and its id are those of the run that the sweep began with."""
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump(digits()))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": "base.yaml"}))
    sweep = load_sweep(tmp_path / "sweep.yaml")
    (cell,) = sweep.cells
    base.write_text("# a comment\n" + yaml.safe_dump(digits()))
    prepared(cell, sweep, Parent(), "ray")  # type: ignore[arg-type]
    base.write_text(yaml.safe_dump(digits(training={"lr": 0.7})))
    with pytest.raises(ScenarioError, match="was edited after the sweep began"):
        prepared(cell, sweep, Parent(), "ray")  # type: ignore[arg-type]


def test_a_method_in_a_folder_of_the_sweep_runs_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "studies" / "methods").mkdir(parents=True)
    template = (REPOSITORY / "raysim" / "cli" / "templates" / "algorithm.py").read_text()
    (tmp_path / "studies" / "methods" / "mine.py").write_text(template.replace("NewMethod", "Mine"))
    content = {"base": digits(), "runs": {"mine": ["algorithm.name=./methods/mine.py"]}}
    (tmp_path / "studies" / "sweep.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    sweep = load_sweep("studies/sweep.yaml")
    (cell,) = sweep.cells
    assert prepared(cell, sweep, Parent(), "ray").scenario.algorithm_name == "mine.py"  # type: ignore[arg-type]


def test_a_resumed_cell_has_the_paths_of_this_command(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data, and its place in MLflow, may have moved since the run began."""
    resumed: list[Any] = []
    monkeypatch.setattr(Run, "resume", lambda run, **given: resumed.append(given["scenario"]))
    cell = prepared(sweep.cells[0], sweep, Parent(), "in_process")  # type: ignore[arg-type]
    folder = sweep.output / cell.folder_name / "run"
    folder.mkdir(parents=True)
    (folder / "run.json").touch()
    (folder / "summary.json").write_text('{"status": "interrupted", "rounds": 1}')
    assert run_cell(CellTask(cell, sweep.output, b""), Stop(), lambda t: None).error == ""
    (scenario,) = resumed
    assert (scenario.data.root, scenario.tracking.uri) == ("/home/me/data", Parent.uri)
