"""A run is whole or `resume` makes it so: whatever cuts its closing off, MLflow and the plots get everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim.results.database import load_mlflow
from raysim.results.folder import RunFolder
from raysim.results.in_memory import MemoryTracker
from raysim.results.load import read_summary
from raysim.results.mlflow import ARTIFACTS, MlflowTracker
from raysim.runs.execution import Execution
from raysim.runs.run import Run, run
from tests.engine.scenarios import plain as loaded

pytestmark = pytest.mark.usefixtures("recorded_in_mlflow")


def recorded(store: str, run_id: object) -> tuple[Any, Any]:
    """MLflow's client, and its one run with this id."""
    load_mlflow(store)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("tiny")
    (found,) = client.search_runs([experiment.experiment_id], f"tags.`raysim.run_id` = '{run_id}'")
    return client, found


def in_mlflow(result: Run, store: str) -> None:
    """MLflow's one run, which must be whole: FINISHED, every round once, every file, and plots as in the folder."""
    client, found = recorded(store, result.summary["run_id"])
    assert found.info.status == "FINISHED"
    steps = sorted(metric.step for metric in client.get_metric_history(found.info.run_id, "accuracy/all"))
    assert steps == list(range(int(result.summary["rounds"]) + 1))
    files = [file for name in ARTIFACTS for file in result.folder.glob(name)]
    assert len(files) == 7
    root = Path(found.info.artifact_uri.removeprefix("file://"))
    for file in files:
        assert (root / file.relative_to(result.folder)).read_bytes() == file.read_bytes(), file
    assert json.loads((root / "summary.json").read_text()) == read_summary(result.folder)
    assert read_summary(result.folder)["status"] == "finished"


class Killed(BaseException):
    """As SIGKILL: nothing that the process would still do is done."""


def dies(*given: Any, **named: Any) -> Any:
    raise Killed


@pytest.fixture
def the_dead_say_no_more(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ends the threads that trackers have, which a process that is killed does not leave; some rounds may be sent."""
    opened: list[MlflowTracker] = []
    open_ = MlflowTracker.open
    monkeypatch.setattr(MlflowTracker, "open", lambda self, card: (opened.append(self), open_(self, card)))
    close = MlflowTracker.close

    def end() -> None:
        for tracker in opened:
            for name in ("_send", "_complete"):
                monkeypatch.setattr(tracker, name, lambda *given: False)
            close(tracker, "failed", {})

    return end


STEPS: dict[str, tuple[Any, str]] = {
    "before the rows are written": (RunFolder, "_write_end"),
    "before plots": (Execution, "_draw"),
    "after MLflow was told": (RunFolder, "mark_finished"),
}


@pytest.mark.parametrize(("step", "death"), [("before plots", KeyboardInterrupt), *((step, Killed) for step in STEPS)])
def test_cut_off_at_any_step_a_run_is_completed(
    workplace: Path,
    tracking_store: str,
    monkeypatch: pytest.MonkeyPatch,
    the_dead_say_no_more: Callable[[], None],
    step: str,
    death: type[BaseException],
) -> None:
    place, name = STEPS[step]

    def cut(*given: Any) -> None:
        raise death

    with monkeypatch.context() as patch:
        patch.setattr(place, name, cut)
        with pytest.raises(death):
            run(loaded(), quiet=True)
    the_dead_say_no_more()
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    begun = step != "before the rows are written"
    assert read_summary(folder)["status"] == ("closing" if begun else "died")
    told = MemoryTracker()
    with monkeypatch.context() as patch:
        if begun:  # no round is run, nothing is restored, and Ray is not there
            patch.setattr(Execution, "run", dies)
        result = Run(folder).resume(quiet=True, trackers=[told])
    assert result.summary["status"] == told.status == "finished"
    in_mlflow(result, tracking_store)
    digest = result.state_digest
    again = Run(folder).resume(quiet=True)
    assert again.summary["nothing_to_do"]
    assert again.state_digest == digest is not None
