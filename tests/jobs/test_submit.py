"""What is sent to a cluster, and what is refused before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raysim import algorithms
from raysim.common.errors import RunError, ScenarioError
from raysim.common.text import is_name
from raysim.jobs.cluster import Cluster
from raysim.jobs.stage import stage
from raysim.jobs.submit import Work, environment, facts_of, facts_of_sweep, new_id, notes_on_data, parse_env, submit
from raysim.jobs.versions import VARIABLE, Versions
from raysim.plugins.own_code import JOB_CODE
from raysim.runs.code import checkout
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.sweeps.definition import files_of, load_sweep
from tests.conftest import REPOSITORY
from tests.data.own import checked, table
from tests.jobs.fakes import HERE, FakeClient, cluster, details

NOT_YET = "Request failed with status code 500: No available agent to submit job, please try again later.."
"""Ray's error right after `ray start`."""

TAKEN = "ValueError: Job with submission_id {submission_id} already exists. Please use a different submission_id."
"""Ray's error for an id that it has."""

QUICKSTART = REPOSITORY / "scenarios" / "quickstart.yaml"


def test_data_below_the_current_folder_is_elsewhere_on_the_cluster(workplace: Path) -> None:
    table(workplace / "data.csv")
    near = checked({"name": "csv", "path": "data.csv", "features": ["a", "b", "c"]})
    far = checked({"name": "csv", "path": str(workplace / "data.csv"), "features": ["a", "b", "c"]})
    note = "data.path: data.csv is relative to ~/raysim on the head node; "
    note += "give an absolute path that is valid on every node"
    assert notes_on_data([near, far, near]) == [note]
    assert notes_on_data([Scenario.load(QUICKSTART)]) == []
    (workplace / "trace.csv").write_text("client,latency_s\n" + "".join(f"{k},1\n" for k in range(20)))
    traced = Scenario.load(QUICKSTART, ["system.trace=trace.csv"])
    assert [one.partition(" is ")[0] for one in notes_on_data([traced])] == ["system.trace: trace.csv"]
    sets = ["data.root=data", "data.partition={name: listed, path: mine.parquet}"]
    notes = notes_on_data([parse_scenario(QUICKSTART, sets)])
    assert [one.partition(" is ")[0] for one in notes] == ["data.root: data", "data.partition.path: mine.parquet"]


class TestStage:
    def test_code_and_scenario_and_nothing_else(self, tmp_path: Path) -> None:
        assert stage([QUICKSTART], tmp_path) == "quickstart.yaml"
        top = {path.name for path in tmp_path.iterdir()}
        assert top == {"raysim", "quickstart.yaml", f"raysim-{Versions.here().raysim}.dist-info", JOB_CODE}
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {path.suffix for path in files} <= {".py", ".typed", ".yaml", ""}
        assert not [path for path in files if "__pycache__" in path.parts]
        assert sum(path.stat().st_size for path in files) < 5_000_000

    def test_a_sweep_with_what_it_needs(self, tmp_path: Path) -> None:
        base = {"base": "../base.yaml", "published": [{"file": "../../values.csv"}, {"file": "../../values.csv"}]}
        (tmp_path / "here" / "a" / "b").mkdir(parents=True)
        (tmp_path / "here" / "a" / "b" / "sweep.yaml").write_text(json.dumps(base))
        (tmp_path / "here" / "a" / "base.yaml").write_text("rounds: 2")
        (tmp_path / "here" / "values.csv").write_text("paper")
        (tmp_path / "here" / "a" / "other.yaml").write_text("rounds: 3")
        files = files_of(tmp_path / "here" / "a" / "b" / "sweep.yaml")
        assert stage(files, tmp_path / "there") == "a/b/sweep.yaml"
        shipped = {path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*.[yc]*")}
        assert {name for name in shipped if not name.startswith("raysim/")} == {
            "a/b/sweep.yaml",
            "a/base.yaml",
            "values.csv",
        }
        assert files_of(tmp_path / "here" / "a" / "base.yaml") == []

    def test_a_sweep_of_a_bundled_scenario(self, tmp_path: Path) -> None:
        """The job's own raysim has the scenario."""
        (tmp_path / "sweep.yaml").write_text("base: quickstart\nseeds: [1]\n")
        assert stage(files_of(tmp_path / "sweep.yaml"), tmp_path / "there") == "sweep.yaml"
        shipped = tmp_path / "there" / "raysim" / "scenarios" / "quickstart.yaml"
        assert shipped.read_bytes() == Path(QUICKSTART).read_bytes()

    def test_a_base_that_is_a_link(self, tmp_path: Path) -> None:
        for name in ("mine", "shared"):
            (tmp_path / name).mkdir()
        (tmp_path / "mine" / "sweep.yaml").write_text("base: base.yaml\nseeds: [1]\n")
        (tmp_path / "shared" / "any.yaml").write_text("rounds: 2")
        (tmp_path / "mine" / "base.yaml").symlink_to(tmp_path / "shared" / "any.yaml")
        assert stage(files_of(tmp_path / "mine" / "sweep.yaml"), tmp_path / "there") == "sweep.yaml"
        assert (tmp_path / "there" / "base.yaml").read_text() == "rounds: 2"

    def test_a_base_in_a_folder_that_is_a_link(self, tmp_path: Path) -> None:
        for name in ("mine", "other"):
            (tmp_path / name).mkdir()
        (tmp_path / "mine" / "sweep.yaml").write_text("base: shared/base.yaml\nseeds: [1]\n")
        (tmp_path / "other" / "base.yaml").write_text("rounds: 2")
        (tmp_path / "mine" / "shared").symlink_to(tmp_path / "other")
        assert stage(files_of(tmp_path / "mine" / "sweep.yaml"), tmp_path / "there") == "sweep.yaml"
        assert (tmp_path / "there" / "shared" / "base.yaml").read_text() == "rounds: 2"

    @pytest.mark.parametrize("line", ["base: {there}", "base: quickstart\npublished: {{file: {there}}}"])
    def test_an_absolute_path_which_the_job_would_not_find(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "sweep.yaml").write_text(line.format(there=tmp_path / "other.yaml") + "\nseeds: [1]\n")
        with pytest.raises(
            ScenarioError, match=r"other\.yaml given; .* give its path relative to the sweep file's folder"
        ):
            files_of(tmp_path / "sweep.yaml")

    def test_a_shipped_sweep_is_the_same(self, tmp_path: Path) -> None:
        file = REPOSITORY / "scenarios" / "sweeps" / "digits.yaml"
        name = stage(files_of(file), tmp_path)
        assert name is not None
        there, here = load_sweep(tmp_path / name), load_sweep(file)
        assert [cell.id for cell in there.cells] == [cell.id for cell in here.cells]
        facts = {"name": "digits", "scenario": str(file), "algorithm": "16 methods", "cells": "240"}
        assert facts_of_sweep(file, here) == facts

    def test_it_stands_alone(self, tmp_path: Path) -> None:
        """In a Python that knows of no other raysim, what was staged is found, with its version and requirements."""
        stage([QUICKSTART], tmp_path)
        program = (
            "import sys, importlib.metadata as m, raysim.jobs.versions as v, raysim.algorithms; "
            "print(v.__file__, raysim.algorithms.__file__, m.version('raysim'), len(m.requires('raysim')), end=' '); "
            "from raysim.runs.code import checkout; print(*checkout())"
        )
        others = "import sys; sys.meta_path = [f for f in sys.meta_path if 'Editable' not in repr(f)]"
        command = [sys.executable, "-c", f"{others}; {program}"]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        output = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        assert [Path(name).is_relative_to(tmp_path) for name in output[:2]] == [True, True]
        assert output[2] == Versions.here().raysim
        assert int(output[3]) > 10
        assert output[4:] == [str(fact) for fact in checkout()]  # of the checkout that it comes from

    def test_a_users_own_algorithms(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        own = tmp_path / "own"
        (own / ".git").mkdir(parents=True)
        (own / "mine.py").write_text("# mine")
        (own / "fedgh.py").write_text("# mine instead")
        (own / "data.bin").write_bytes(bytes(10))
        (own / ".git" / "hook.py").write_text("")
        monkeypatch.setattr(algorithms, "__path__", [str(own), *algorithms.__path__])
        folder = tmp_path / "staged"
        stage([QUICKSTART], folder)
        assert (folder / "raysim" / "algorithms" / "fedgh.py").read_text() == "# mine instead"
        assert (folder / "raysim" / "algorithms" / "mine.py").exists()
        assert (folder / "raysim" / "algorithms" / "fedssa.py").exists()
        assert not (folder / "raysim" / "algorithms" / "data.bin").exists()
        assert not (folder / "raysim" / "algorithms" / ".git").exists()


class TestEnvironment:
    def test_nothing_of_this_machine_but_versions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mine.db")
        monkeypatch.setenv("SECRET", "x")
        sent, notes = environment({"RAYSIM_DATA": "/data"}, HERE)
        assert set(sent) == {VARIABLE, "RAY_JOB_STOP_WAIT_TIME_S", "RAYSIM_DATA"}
        assert notes == []

    def test_a_tracking_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
        assert environment({}, HERE)[0]["MLFLOW_TRACKING_URI"] == "https://mlflow.example"
        assert environment({"MLFLOW_TRACKING_URI": "x"}, HERE)[0]["MLFLOW_TRACKING_URI"] == "x"

    def test_a_tracking_server_that_only_this_machine_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
        sent, notes = environment({}, "http://head:8265")
        assert "MLFLOW_TRACKING_URI" not in sent
        assert "because only this machine can reach this address; to log to MLflow" in notes[0]
        sent, notes = environment({}, HERE)  # through a tunnel, or a cluster on this machine
        assert sent["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5000"
        assert "which there is the address of a server on the head node" in notes[0]

    def test_given(self) -> None:
        assert parse_env(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}

    @pytest.mark.parametrize("item", ["A", "=1", "1A=2", "A B=1"])
    def test_not_of_its_form(self, item: str) -> None:
        with pytest.raises(ScenarioError, match="KEY=VALUE"):
            parse_env([item])


class TestSubmit:
    def send(self, to: Cluster, job: str = "j1", *sets: str) -> dict[str, Any]:
        submit(to, Work(QUICKSTART, sets, None, facts_of(QUICKSTART, Scenario.load(QUICKSTART, sets))), {}, job)
        ((_, sent),) = to.client.asked
        return sent

    def test_what_ray_is_told(self) -> None:
        sent = self.send(cluster(version=Versions.here().ray), "j1", "rounds=2", "algorithm={name: fedgh}")
        command = "exec python -m raysim.jobs.entry quickstart.yaml --set rounds=2 --set 'algorithm={name: fedgh}'"
        assert (sent["submission_id"], sent["entrypoint"]) == ("j1", command)
        assert sent["metadata"]["algorithm"] == "fedgh"
        assert not any("num" in name for name in sent)  # the driver asks for no CPU and no GPU
        assert not Path(sent["runtime_env"]["working_dir"]).exists()  # uploaded by then

    def test_going_on(self) -> None:
        to = cluster(version=Versions.here().ray)
        submit(to, Work(None, ["rounds=9"], "/a b/r1", {"name": "quickstart"}, code_changed=True), {}, "j1")
        ((_, sent),) = to.client.asked
        assert sent["entrypoint"] == "exec python -m raysim.jobs.entry --set rounds=9 '--resume=/a b/r1' --code-changed"
        assert sent["metadata"] == {"raysim": Versions.here().raysim, "name": "quickstart"}

    def test_a_sweep(self) -> None:
        to, file = cluster(version=Versions.here().ray), REPOSITORY / "scenarios" / "sweeps" / "digits.yaml"
        submit(to, Work(file, ["rounds=2"], sweep=files_of(file)), {}, "j1")
        ((_, sent),) = to.client.asked
        assert sent["entrypoint"] == "exec python -m raysim.jobs.entry sweeps/digits.yaml --sweep --set rounds=2"

    def test_submission_to_a_new_cluster_is_retried(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("raysim.jobs.submit.RETRY_S", 0.0)
        to, send = cluster(version=Versions.here().ray), FakeClient.submit_job
        refusals = iter([NOT_YET, NOT_YET])

        def submit_job(self: FakeClient, **named: Any) -> str:
            if text := next(refusals, None):
                raise RuntimeError(text)
            return send(self, **named)

        monkeypatch.setattr(FakeClient, "submit_job", submit_job)
        submit(to, Work(None, [], "r1"), {}, "j1")
        assert caplog.messages == [f"{HERE} accepts no jobs yet; retrying for up to 60 s"]
        assert [what for what, _ in to.client.asked] == ["submit"]

    @pytest.mark.parametrize("taken", [True, False])
    def test_a_connection_that_breaks_is_retried(
        self, taken: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("raysim.jobs.submit.RETRY_S", 0.0)
        to, send = cluster(version=Versions.here().ray), FakeClient.submit_job
        answers = iter([taken, False])  # what happens before the connection breaks, twice

        def submit_job(self: FakeClient, **named: Any) -> str:
            if named["submission_id"] in self.jobs:
                raise RuntimeError(f"Request failed with status code 500: {TAKEN.format(**named)}")
            if (arrives := next(answers, None)) is not None:
                if arrives:
                    send(self, **named)
                raise ConnectionError("('Connection aborted.', RemoteDisconnected('closed without response'))")
            return send(self, **named)

        monkeypatch.setattr(FakeClient, "submit_job", submit_job)
        submit(to, Work(None, [], "r1"), {}, "j1")
        assert caplog.messages == [f"{HERE} broke the connection; retrying for up to 60 s"]
        assert [what for what, _ in to.client.asked] == ["submit"]  # it is there once

    def test_an_id_that_another_took_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def submit_job(self: FakeClient, **named: Any) -> str:
            raise RuntimeError(f"Request failed with status code 500: {TAKEN.format(**named)}")

        monkeypatch.setattr(FakeClient, "submit_job", submit_job)
        with pytest.raises(RunError, match=r"refused: .*j1 already exists"):
            submit(cluster(version=Versions.here().ray), Work(None, [], "r1"), {}, "j1")

    def test_it_is_not_asked_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysim.jobs.submit.READY_S", -1.0)
        monkeypatch.setattr(
            FakeClient, "submit_job", lambda self, **named: (_ for _ in ()).throw(RuntimeError(NOT_YET))
        )
        with pytest.raises(RunError, match=r"refused: .*No available agent to submit job.* \(after .*`ray status`"):
            submit(cluster(version=Versions.here().ray), Work(None, [], "r1"), {}, "j1")

    def test_an_id_that_is_taken(self) -> None:
        with pytest.raises(ScenarioError, match="--id: j1 is the id of another job"):
            self.send(cluster(details("j1"), version=Versions.here().ray))

    def test_another_release_of_ray_is_sent_nothing(self) -> None:
        old = cluster(version="2.9.0")
        with pytest.raises(ScenarioError, match=r"the cluster has Ray 2\.9\.0, but .*install ray==2\.9\.0 where you"):
            self.send(old)
        assert old.client.asked == []

    def test_ids(self) -> None:
        assert new_id("quickstart").startswith("quickstart-2")
        assert new_id("quickstart") != new_id("quickstart")
        assert new_id("quickstart", "mine.1") == "mine.1"
        assert is_name(new_id("n" * 100))  # an id that `status` and `stop` accept
        for given in ("", "a b", "../x", "-x", "a" * 101):
            with pytest.raises(ScenarioError, match="--id"):
                new_id("quickstart", given)
