"""`--json`: the output of every command that has it holds what is printed for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.jobs.job_log import PREFIX
from raysim.plugins.registry import algorithm_names
from raysim.study.compare import compare
from raysim.study.definition import load_sweep
from tests.cli.command import run
from tests.conftest import REPOSITORY
from tests.jobs.fakes import FakeClient, details, use
from tests.study.runs import make_run

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")

Printed = Callable[..., Any]


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Printed:
    """Run a command with --json and return its output."""

    def output(command: str, *words: str, code: int = 0) -> Any:
        ended, out, err = run(capfd, command, *words, "--json")
        assert (ended, err) == (code, "") and out.isascii() and "\x1b" not in out
        return json.loads(out, parse_constant=pytest.fail)  # NaN is no JSON

    return output


def test_validate(printed: Printed, workplace: Path) -> None:
    found = printed("validate", QUICKSTART, "--set", "rounds=3")
    assert (found["settings"]["rounds"], found["code"]) == (3, [])
    assert found["scenario"] == QUICKSTART
    (workplace / "mine.py").write_text((REPOSITORY / "algorithms" / "fedgh.py").read_text())
    assert printed("validate", QUICKSTART, "--set", "algorithm.name=./mine.py")["code"] == [str(workplace / "mine.py")]
    names = [one["name"] for one in printed("list", "methods")["algorithms"]]
    assert names == algorithm_names()


def test_compare(printed: Printed, tmp_path: Path, undrawn: None) -> None:
    for seed in (1, 2, 3):
        make_run(tmp_path / "runs" / f"a{seed}", seed=seed)
        make_run(tmp_path / "runs" / f"b{seed}", "standalone", seed, accuracy=[0.1, 0.2, 0.3, 0.4 + 0.01 * seed])
    words = [str(tmp_path / "runs"), "--baseline", "standalone", "--target", "0.45"]
    found = printed("compare", *words)
    comparison = compare(tmp_path / "runs", baseline="standalone", targets=[0.45])
    assert [[one["mean"], one["p_holm"]] for one in found["measures"]] == [
        [None if value != value else value for value in row] for row in comparison.frame[["mean", "p_holm"]].to_numpy()
    ]
    last = {one["variant"]: one for one in found["measures"] if one["measure"] == "last"}
    assert (
        last["standalone"]["values"] == pytest.approx([0.41, 0.42, 0.43]) and last["standalone"]["difference"] is None
    )
    assert (found["baseline"], found["notes"], found["files"]) == ("standalone", comparison.notes, [])
    assert found["runs"][0]["folder"] == str(tmp_path / "runs" / "a1")
    found = printed("compare", *words, "--columns", "last", "-o", str(tmp_path / "out"))
    assert {one["measure"] for one in found["measures"]} == {"last"}
    assert str(tmp_path / "out" / "comparison.csv") in found["files"]


def test_the_status_of_a_sweep(printed: Printed, workplace: Path) -> None:
    content = {
        "base": QUICKSTART,
        "runs": {"FedGH": ["algorithm.name=fedgh"], "Alone": ["algorithm.name=standalone"]},
        "seeds": [1],
        "tune": {"seeds": [101], "trials": 2, "search": "grid", "methods": {"FedGH": {"training.lr": [0.1, 0.2]}}},
    }
    Path("sweep.yaml").write_text(yaml.safe_dump(content))
    sweep = load_sweep("sweep.yaml")
    (cell,) = [one for one in sweep.cells if not one.pending]
    folder = make_run(sweep.output / cell.folder_name / "run", "standalone")
    summary = folder / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "dataset": {}}))  # its digest is made up
    found = printed("sweep", "sweep.yaml", "--status")
    assert found["counts"] == {"done": 1, "waiting": 1} and found["folder"] == str(workplace / sweep.output)
    done, waiting = sorted(found["cells"], key=lambda one: one["state"])
    assert (done["name"], done["rounds"], done["folder"]) == (cell.name, 3, str(workplace / folder))
    assert waiting["folder"] is None and "tuning" in waiting["reason"]
    (tuning,) = found["tuning"]
    assert (tuning["state"], tuning["variant"]["label"], tuning["planned_trials"]) == ("tuning", "FedGH", 2)


def test_the_status_of_a_job(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = {
        "rounds": 3,
        "final": {"accuracy/all": 0.512345, "loss/train": float("nan")},
    }
    facts = {"run_folder": "/home/x/r1"}
    log = f"{PREFIX}{json.dumps(facts)}\nround 3/9  accuracy 30.0%\n"
    jobs = FakeClient(
        details("j"),
        details("k", "FAILED", driver_exit_code=2),
        logs={"j": log, "k": f"{log}{PREFIX}{json.dumps({'summary': summary})}\nraysim: no such folder\n"},
    )
    use(monkeypatch, jobs)
    found = printed("status", "j")
    assert (found["state"], found["folder"], found["summary"]) == ("RUNNING", "/home/x/r1", {})
    assert found["progress"].startswith("round 3/9") and found["submitted"].startswith("19")
    found = printed("status", "k")
    assert (found["why"], found["ended"]) == ("no such folder", True)
    assert found["summary"]["final"] == {"accuracy/all": 0.512345, "loss/train": None}
