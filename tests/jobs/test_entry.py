"""A job's own program: what it refuses, where its paths lead, how it ends. On this machine, without Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.common.errors import RunError, ScenarioError
from raysim.jobs import entry
from raysim.jobs.job_log import JobLogTracker, read_log
from raysim.jobs.versions import VARIABLE, Versions
from raysim.plugins.own_code import JOB_CODE
from raysim.runs.run import Run
from raysim.scenario.parse import ParsedScenario
from raysim.sweeps.cells import Sweep
from raysim.tracking.store import resolve_uri
from tests.conftest import REPOSITORY

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")
SUMMARY = {"scenario": "quickstart", "algorithm": "fedgh", "status": "finished", "rounds": 2}

RESUMED = Run.resume
"""What `ran` replaces."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Runs that were begun; `run` and `resume` only note where. Versions fit, and the home folder is empty."""
    begun: list[dict[str, Any]] = []

    def run(loaded: ParsedScenario, *, trackers: list[JobLogTracker], resume_command: str) -> Any:
        output = loaded.settings.output_folder
        begun.append({"output": output, "store": resolve_uri(loaded.tracking.uri)})
        trackers[0].open(SimpleNamespace(folder=output / "quickstart" / "r1", run_id="r1"))  # type: ignore[arg-type]
        trackers[0].close("finished", SUMMARY)
        return SimpleNamespace(summary=SUMMARY)

    def resume(
        run: Run,
        sets: Sequence[str],
        *,
        scenario: ParsedScenario | None,
        trackers: list[JobLogTracker],
        resume_command: str,
        code_changed: bool,
    ) -> Any:
        assert resume_command == "raysim submit --resume"
        begun.append({"folder": run.folder, "loaded": scenario and scenario.rounds, "sets": list(sets)})
        if code_changed:
            begun[-1]["code_changed"] = True
        return SimpleNamespace(
            summary={
                **SUMMARY,
                "run_id": "r1",
                "folder": str(run.folder),
                "nothing_to_do": "to run more rounds: raysim submit --resume r1 --set rounds=N",
            }
        )

    monkeypatch.setattr("raysim.runs.run.run", run)
    monkeypatch.setattr(Run, "resume", resume)
    monkeypatch.setattr(entry, "stoppable", lambda: nullcontext(threading.Event()))
    monkeypatch.setenv(VARIABLE, Versions.here().text())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    return begun


def test_relative_paths_are_in_the_home_folder(
    ran: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([QUICKSTART, "--set", "rounds=2"]) == 0
    place = tmp_path / "home" / "raysim"
    assert ran == [{"output": place / "runs", "store": f"sqlite:///{place}/mlflow.db"}]
    log = read_log(capfd.readouterr().out)
    assert (log.run_folder, log.run_id) == (str(place / "runs" / "quickstart" / "r1"), "r1")
    assert log.summary == SUMMARY


def test_absolute_ones_stay(ran: list[dict[str, Any]]) -> None:
    uri = "http://mlflow.example:5000"
    assert entry.main([QUICKSTART, "--set", "output=/shared/runs", "--set", f"tracking.uri={uri}"]) == 0
    assert ran == [{"output": Path("/shared/runs"), "store": uri}]


@pytest.mark.parametrize("code", [0, 1])
def test_a_sweep(
    ran: list[dict[str, Any]],
    tmp_path: Path,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run_and_show(sweep: Sweep) -> int:
        ran.append({"cells": [cell.name for cell in sweep.cells], "rounds": sweep.cells[0].scenario.rounds})
        print("1 running, 1 waiting; 3 of 4 rounds, about 5.00 s left", file=sys.stderr)
        return code

    monkeypatch.setattr("raysim.sweeps.display.run_and_show", run_and_show)
    (tmp_path / "few.yaml").write_text(f"base: {QUICKSTART}\nseeds: [1, 2]\n")
    assert entry.main(["few.yaml", "--sweep", "--set", "rounds=2"]) == code
    assert ran == [{"cells": ["seed=1", "seed=2"], "rounds": 2}]
    log = read_log("".join(capfd.readouterr()))
    assert (log.run_folder, log.run_id) == (str(tmp_path / "home" / "raysim" / "runs" / "few"), "few")
    assert log.sweep and log.progress == "1 running, 1 waiting; 3 of 4 rounds, about 5.00 s left"


def test_what_does_not_fit_is_one_sentence(
    ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, replace(Versions.here(), ray="2.9.0").text())
    assert entry.main([QUICKSTART]) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith("raysim: the cluster has Ray ")
    assert output.err.count("\n") == 1
    assert ran == []


def test_another_torch_is_told_and_runs(
    ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, replace(Versions.here(), torch="1.0").text())
    assert entry.main([QUICKSTART]) == 0
    assert capfd.readouterr().err.startswith("note: the cluster has torch ")
    assert len(ran) == 1


def test_a_home_folder_that_cannot_be_written(
    ran: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home" / "raysim").write_text("")
    assert entry.main([QUICKSTART]) == 2
    assert "cannot create ~/raysim on the head node" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (ScenarioError("data.root: no such folder"), 2, "raysim: data.root: no such folder"),
        (RunError("actors died"), 1, "raysim: actors died"),
        (KeyboardInterrupt(), 130, "raysim: stopped"),
    ],
)
def test_exit_codes(
    ran: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    output: str,
) -> None:
    def run(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("raysim.runs.run.run", run)
    assert entry.main([QUICKSTART]) == code
    assert capfd.readouterr().err == f"{output}\n"


def test_the_entry_imports_nothing_that_may_be_missing() -> None:
    """Before the versions fit, nothing is imported that a cluster may lack."""
    program = "import sys, raysim.jobs.entry; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "numpy", "yaml", "pydantic", "click", "rich", "mlflow"} & set(loaded)


class TestResume:
    """Resuming a run; the home folder has one, `quickstart/r1`."""

    @pytest.fixture
    def run_folder(self, ran: list[dict[str, Any]], tmp_path: Path) -> Path:
        folder = tmp_path / "home" / "raysim" / "runs" / "quickstart" / "r1"
        folder.mkdir(parents=True)
        return folder

    @pytest.mark.parametrize("given", ["r1", "runs/quickstart/r1", "~/raysim/runs/quickstart/r1"])
    def test_a_run_of_the_home_folder(self, ran: list[dict[str, Any]], run_folder: Path, given: str) -> None:
        assert entry.main([QUICKSTART, "--set", "rounds=30", f"--resume={given}"]) == 0
        assert ran == [{"folder": run_folder, "loaded": 30, "sets": ["rounds=30"]}]

    def test_a_run_of_the_scenarios_output(self, ran: list[dict[str, Any]], tmp_path: Path) -> None:
        folder = tmp_path / "shared" / "quickstart" / "r2"
        folder.mkdir(parents=True)
        assert entry.main([QUICKSTART, "--set", f"output={tmp_path}/shared", "--resume=r2"]) == 0
        assert ran[0]["folder"] == folder

    def test_as_it_was(self, ran: list[dict[str, Any]], run_folder: Path) -> None:
        assert entry.main(["--set", "rounds=30", "--resume=r1"]) == 0
        assert ran == [{"folder": run_folder, "loaded": None, "sets": ["rounds=30"]}]

    def test_with_other_code(self, ran: list[dict[str, Any]], run_folder: Path) -> None:
        assert entry.main(["--resume=r1", "--code-changed"]) == 0
        assert ran == [{"folder": run_folder, "loaded": None, "sets": [], "code_changed": True}]

    def test_one_that_has_all_rounds_can_be_fetched(self, run_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert entry.main([QUICKSTART, f"--resume={run_folder}"]) == 0
        shown = capfd.readouterr()
        finished = f"{run_folder}: this run is finished: all 2 rounds are done; to run more rounds: raysim submit"
        assert finished in shown.err
        log = read_log(shown.out)
        assert (log.run_folder, log.run_id) == (str(run_folder), "r1")

    def test_a_run_that_does_not_exist(
        self, ran: list[dict[str, Any]], run_folder: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert entry.main([QUICKSTART, "--resume=r9"]) == 2
        output = capfd.readouterr().err
        assert output.startswith("raysim: --resume: r9 is neither a run folder nor the id of a run below")
        assert output.endswith("(on the head node)\n")
        assert output.count("\n") == 1
        assert ran == []

    def test_a_folder_without_a_run(
        self, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(Run, "resume", RESUMED)
        assert entry.main(["--resume=r1"]) == 2
        assert "contains no run.json" in capfd.readouterr().err


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A file that was sent with a job; ~/raysim, where a job's relative paths begin, has one of the same name."""
    template = (REPOSITORY / "raysim" / "cli" / "templates" / "algorithm.py").read_text().replace("NewMethod", "Mine")
    for folder in (tmp_path / JOB_CODE, tmp_path / "home" / "raysim"):
        folder.mkdir()
        (folder / "mine.py").write_text(template)
    return (tmp_path / JOB_CODE / "mine.py").resolve()


OF_THE_HEAD_NODE = ["./mine.py", "~/raysim/mine.py"]


@pytest.mark.parametrize("given", OF_THE_HEAD_NODE)
def test_a_run_has_the_file_that_was_sent(
    given: str, ran: list[dict[str, Any]], sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []

    def run(loaded: ParsedScenario, **_: Any) -> Any:
        paths.extend(loaded.own_code.paths)
        return SimpleNamespace(summary=SUMMARY)

    monkeypatch.setattr("raysim.runs.run.run", run)
    shutil.copyfile(QUICKSTART, tmp_path / "s.yaml")
    assert entry.main(["s.yaml", "--set", f"algorithm.name={given}"]) == 0
    assert paths == [str(sent)]


@pytest.mark.parametrize("given", OF_THE_HEAD_NODE)
def test_a_sweep_has_the_file_that_was_sent(
    given: str, ran: list[dict[str, Any]], sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[list[str]] = []
    monkeypatch.setattr(
        "raysim.sweeps.display.run_and_show",
        lambda sweep: paths.append([path for cell in sweep.cells for path in cell.scenario.own_code.paths]) or 0,
    )
    (tmp_path / "few.yaml").write_text(f"base: {QUICKSTART}\nseeds: [1]\n")
    assert entry.main(["few.yaml", "--sweep", "--set", f"algorithm.name={given}"]) == 0
    assert paths == [[str(sent)]]
