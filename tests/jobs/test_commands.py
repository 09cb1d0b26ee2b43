"""The commands as a user meets them, with a client that is a dictionary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raysim.jobs import job_log
from raysim.jobs.entry import versions
from raysim.jobs.job_log import PREFIX
from tests.cli.command import run
from tests.conftest import REPOSITORY
from tests.jobs.fakes import FakeClient, details, use

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")
FOLDER = "/home/x/raysim/runs/quickstart/r1"
LOG = f"noise\n{PREFIX}{json.dumps({'run_folder': FOLDER})}\nround 3/9  accuracy 30.0% all\n"
SUMMARY = {"rounds": 3, "final": {"accuracy/all": 0.5}, "state_digest": "ab" * 32}
ENDED = f"{LOG}{PREFIX}{json.dumps({'summary': SUMMARY})}\n"
SWEEP = f"{PREFIX}{json.dumps({'run_folder': '/home/x/raysim/runs/digits', 'sweep': True})}\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _default_address(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_a_wrong_submission_sends_no_request(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: pytest.fail("connected"))
    code, out, err = run(capfd, "submit", QUICKSTART, "--set", "rounds=0")
    assert (code, out) == (2, "") and "rounds" in err


def test_no_cluster(workplace: Path) -> None:
    """In a process of its own, because Ray reads the mode and the token only once."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [Path(sys.executable).parent / "raysim", "jobs", "--address", "127.0.0.1:9"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "127.0.0.1:9" in ended.stderr and ended.stderr.count("\n") == 1


class TestSubmit:
    def test_a_scenario(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        client = use(monkeypatch, FakeClient())
        words = ["--set", "rounds=2", "--env", "RAYSIM_DATA=/data"]
        code, out, _ = run(capfd, "submit", QUICKSTART, *words, "--id", "j", "--address", "http://head:8265")
        assert code == 0
        assert out.splitlines()[0] == "submitted j"
        for word in ("logs j --follow", "status j", "stop j", "fetch j"):
            assert f"raysim {word} --address http://head:8265" in out
        (sent,) = client.sent
        command = f"exec python -m raysim.jobs.entry '{versions()}' quickstart.yaml --set rounds=2"
        assert (sent["submission_id"], sent["entrypoint"]) == ("j", command)
        assert sent["metadata"]["algorithm"] == "fedgh"
        assert sent["runtime_env"]["env_vars"]["RAYSIM_DATA"] == "/data"
        assert not any("num" in name for name in sent)  # the driver asks for no CPU and no GPU
        assert not Path(sent["runtime_env"]["working_dir"]).exists()  # uploaded by then

    def test_a_sweep(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        client = use(monkeypatch, FakeClient())
        file = str(REPOSITORY / "scenarios" / "sweeps" / "digits.yaml")
        code, out, _ = run(capfd, "submit", file, "--set", "rounds=2")
        assert code == 0 and out.startswith("submitted digits-")
        assert client.sent[0]["entrypoint"].endswith(" sweeps/digits.yaml --set rounds=2 --sweep")
        assert client.sent[0]["metadata"]["name"] == "digits"

    def test_resume_of_a_job(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        client = use(monkeypatch, FakeClient(details("j", "STOPPED"), logs={"j": LOG}))
        code, out, _ = run(capfd, "submit", "--resume", "j", "--set", "rounds=9", "--code-changed")
        assert code == 0 and out.startswith("submitted quickstart-")
        (sent,) = client.sent
        assert sent["entrypoint"].endswith(f" --set rounds=9 --resume={FOLDER} --code-changed")
        assert sent["metadata"]["algorithm"] == "fedgh"

    def test_a_job_without_a_run_cannot_be_resumed(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, FakeClient(details("j", "FAILED"), logs={"j": SWEEP}))
        code, _, err = run(capfd, "submit", "--resume", "j")
        assert code == 2 and "--resume: the job j" in err

    @pytest.mark.parametrize(
        ("address", "sent"),
        [("https://mlflow.example", True), ("http://127.0.0.1:5000", False)],
    )
    def test_of_this_machine_only_a_tracking_server_is_sent(
        self, capfd: Capture, monkeypatch: pytest.MonkeyPatch, address: str, sent: bool
    ) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        client = use(monkeypatch, FakeClient())
        _, _, err = run(capfd, "submit", QUICKSTART)
        variables = client.sent[0]["runtime_env"]["env_vars"]
        assert variables.get("MLFLOW_TRACKING_URI") == (address if sent else None)
        assert variables.keys() <= {"MLFLOW_TRACKING_URI", "RAY_JOB_STOP_WAIT_TIME_S"}
        assert ("--env MLFLOW_TRACKING_URI=" in err) == address.startswith("http:")

    @pytest.mark.parametrize(
        ("state", "exit_code", "code"),
        [("SUCCEEDED", 0, 0), ("FAILED", 2, 2), ("STOPPED", None, 130)],
    )
    def test_waiting_ends_as_the_job(
        self, capfd: Capture, monkeypatch: pytest.MonkeyPatch, state: str, exit_code: int | None, code: int
    ) -> None:
        client = use(monkeypatch, FakeClient(logs={"j": LOG}))
        ended = details("j", state, driver_exit_code=exit_code, message="no node left")
        monkeypatch.setattr(client, "get_job_info", lambda job: ended)
        found, out, err = run(capfd, "submit", QUICKSTART, "--id", "j", "--wait")
        assert (found, out) == (code, "noise\nround 3/9  accuracy 30.0% all\n")
        assert (f"raysim: j: {state}: " in err) == (code != 0)


class TestStatus:
    def test_a_running_job(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, FakeClient(details("j"), logs={"j": LOG}))
        _, out, _ = run(capfd, "status", "j")
        for text in ("RUNNING", "quickstart, fedgh", "round 3/9  accuracy 30.0% all", FOLDER):
            assert text in out

    def test_a_job_that_failed(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        failed = details("j", "FAILED", driver_exit_code=2, message="")
        use(monkeypatch, FakeClient(failed, logs={"j": "raysim: data.root: no such folder\n"}))
        assert "data.root" in run(capfd, "status", "j")[1]

    @pytest.mark.parametrize("command", ["status", "fetch"])
    def test_an_unknown_id(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        use(monkeypatch, FakeClient(details("j")))
        code, _, err = run(capfd, command, "i")
        assert code == 2 and "Job i does not exist" in err and err.count("\n") == 1


class TestLogs:
    def test_a_connection_that_breaks_loses_nothing(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_log, "POLL_S", 0.002)
        client = use(monkeypatch, FakeClient(details("j")))
        left = list(range(len(ENDED)))

        def get_job_logs(job: str) -> str:
            if not left:
                client.jobs["j"] = details("j", "SUCCEEDED")
                return ENDED
            if left[0] % 7 == 3:
                left.pop(0)
                raise ConnectionResetError("Connection reset")
            return ENDED[: left.pop(0)]

        monkeypatch.setattr(client, "get_job_logs", get_job_logs)
        assert run(capfd, "logs", "j", "--follow")[1] == "noise\nround 3/9  accuracy 30.0% all\n"

    def test_ctrl_c_ends_the_following_only(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(seconds: float) -> None:
            raise KeyboardInterrupt

        client = use(monkeypatch, FakeClient(details("j")))
        monkeypatch.setattr("raysim.jobs.job_log.time.sleep", interrupt)
        code, _, err = run(capfd, "logs", "j", "--follow", "--address", "http://head:8265")
        assert code == 130 and client.stopped == []
        assert "raysim stop j --address http://head:8265" in err


class TestStop:
    def test_what_is_kept(self, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        client = use(monkeypatch, FakeClient(details("j"), logs={"j": ENDED}))
        _, out, _ = run(capfd, "stop", "j")
        assert f"STOPPED; its finished rounds are kept in {FOLDER}" in out
        assert "raysim fetch j\n" in out and "raysim submit --resume j\n" in out
        assert client.stopped == ["j"]
