"""The commands as a user meets them, without a cluster: one sentence, exit code 2, no request."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim.cli.main import main
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import PREFIX
from raysim.jobs.versions import Versions
from raysim.jobs.watch import Job
from tests.conftest import REPOSITORY
from tests.jobs import add_commands
from tests.jobs.fakes import cluster, details

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")
NOWHERE = ["--address", "http://127.0.0.1:9"]


@pytest.fixture(autouse=True)
def _commands() -> None:
    add_commands()


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    output = capfd.readouterr()
    assert ended.value.code == 2, output
    assert output.out == ""
    return output.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "rounds=0"], "rounds: 0 given"),
        (["--set", "algorithm.name=fedhg"], "did you mean 'fedgh'"),
        (["--set", "clients.models=[nosuch]"], "nosuch"),
        (["--env", "X"], "--env X: write it as KEY=VALUE"),
        (["--id", "a b"], "--id: 'a b' given"),
        (["--resume", "r1", "--set", "rounds=0"], "rounds: 0 given"),
    ],
)
def test_a_wrong_submission_sends_no_request(
    capfd: pytest.CaptureFixture[str], workplace: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    def connect(*rest: object) -> None:
        raise AssertionError("the cluster was asked")

    monkeypatch.setattr("raysim.jobs.cluster.connect", connect)
    output = refused(capfd, "submit", QUICKSTART, *words)
    assert message in output
    assert output.count("\n") == 1


def test_a_submission_of_nothing(capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
    assert "Missing argument 'SCENARIO'; it is optional only with --resume" in refused(capfd, "submit", *NOWHERE)


@pytest.mark.parametrize(
    "words", [["submit", QUICKSTART], ["status", "j"], ["logs", "j"], ["stop", "j"], ["jobs"], ["fetch", "j"]]
)
def test_no_cluster(capfd: pytest.CaptureFixture[str], workplace: Path, words: list[str]) -> None:
    output = refused(capfd, *words, *NOWHERE)
    assert "http://127.0.0.1:9 does not answer (connection refused)" in output
    assert output.count("\n") == 1
    assert list(workplace.iterdir()) == []


class TestWithACluster:
    """What the commands print, over a client that is a dictionary."""

    LOG = (
        "noise\n"
        + PREFIX
        + json.dumps({"run_folder": "/home/x/raysim/runs/quickstart/r1", "run_id": "r1"})
        + "\nround 3/9  accuracy 30.0% all\n"
    )
    SUMMARY = PREFIX + json.dumps({"summary": {"rounds": 3, "final": {"accuracy/all": 0.5}, "state_digest": "ab" * 32}})

    @pytest.fixture
    def use(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], None]:
        return lambda given: monkeypatch.setattr("raysim.jobs.cluster.connect", lambda address: given)

    def output(self, capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
        try:
            main(words)
            ended: object = 0
        except SystemExit as error:
            ended = error.code or 0
        output = capfd.readouterr()
        assert ended == code, output
        return output.out + output.err

    def test_text_of_a_job_is_safe_for_a_terminal(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        evil = "\x1b[2Jx\x1b]0;y\x07"
        summary = {
            "scenario": evil,
            "algorithm": evil,
            "rounds": evil,
            "final": {"accuracy/all": evil},
            "folder": [evil],
        }
        use(
            cluster(
                details("j", "FAILED", metadata={"raysim": "1", "name": evil, "algorithm": evil}, start_time=10**30),
                details(f"j{evil}", "FAILED"),
                details("k", "FAILED", message=f"\n{evil}"),
                logs={"j": f"{evil}\n{PREFIX}{json.dumps({'summary': summary})}\nraysim: {evil}"},
            )
        )
        for words in (["status", "j"], ["logs", "j"], ["jobs"], ["status", "k"], ["stop", "j"]):
            output = self.output(capfd, *words)
            assert "\x1b" not in output
            assert "\x07" not in output
            assert "x" in output or words[0] == "stop"

    def test_status_of_a_running_job(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        use(cluster(details("j"), logs={"j": self.LOG}))
        output = self.output(capfd, "status", "j")
        for text in ("RUNNING", "quickstart, fedgh", "round 3/9  accuracy 30.0% all", "/home/x/raysim/runs"):
            assert text in output

    def test_status_of_one_that_ended(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        use(cluster(details("j", "SUCCEEDED"), logs={"j": self.LOG + self.SUMMARY + "\n"}))
        output = self.output(capfd, "status", "j")
        for text in ("SUCCEEDED", "50.0%", "abababababab"):
            assert text in output

    def test_status_of_one_that_failed(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        failed = details("j", "FAILED", driver_exit_code=2)
        use(cluster(failed, logs={"j": "raysim: data.root: no such folder\n"}))
        assert "data.root: no such folder" in self.output(capfd, "status", "j")

    def test_logs_are_for_people(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        use(cluster(details("j"), logs={"j": self.LOG}))
        assert self.output(capfd, "logs", "j") == "noise\nround 3/9  accuracy 30.0% all\n"

    def test_the_table_is_never_folded(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        use(cluster(details("a" * 100), details("b", "PENDING", start_time=9_000)))
        head, first, second = self.output(capfd, "jobs").splitlines()
        assert head.split() == ["id", "state", "scenario", "algorithm", "submitted", "time"]
        assert first.split()[:2] == ["b", "PENDING"]
        assert second.split()[:2] == ["a" * 100, "RUNNING"]

    def test_stop_reports_what_is_kept(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        use(cluster(details("j"), logs={"j": self.LOG + self.SUMMARY + "\n"}))
        kept = "3 rounds are kept in /home/x/raysim/runs/quickstart/r1"
        then = "  fetch   raysim fetch j\n  resume  raysim submit --resume j\n"
        assert self.output(capfd, "stop", "j") == f"j: STOPPED; {kept}\n{then}"
        assert self.output(capfd, "stop", "j") == "j had ended already: STOPPED\n"

    def test_a_sweep_that_is_stopped_is_submitted_again(self, capfd: pytest.CaptureFixture[str], use: Any) -> None:
        facts = {"run_folder": "/home/x/raysim/runs/digits", "run_id": "digits", "sweep": True}
        use(cluster(details("j"), logs={"j": PREFIX + json.dumps(facts) + "\n"}))
        assert self.output(capfd, "stop", "j").splitlines()[-1] == "  resume  submit the same sweep again"

    def test_what_was_submitted_and_what_now(
        self, capfd: pytest.CaptureFixture[str], use: Any, workplace: Path
    ) -> None:
        use(cluster(version=Versions.here().ray))
        output = self.output(capfd, "submit", QUICKSTART, "--id", "j", "--address", "http://head:8265")
        assert output.splitlines()[0] == "submitted j"
        for word in ("logs j --follow", "status j", "stop j", "fetch j"):
            assert f"raysim {word} --address http://head:8265" in output

    def test_going_on_with_what_a_job_did(self, capfd: pytest.CaptureFixture[str], use: Any, workplace: Path) -> None:
        here = cluster(details("j", "STOPPED"), version=Versions.here().ray, logs={"j": self.LOG})
        use(here)
        output = self.output(capfd, "submit", "--resume", "j", "--set", "rounds=9")
        assert output.startswith("submitted quickstart-2")
        (sent,) = (given for what, given in here.client.asked if what == "submit")
        assert sent["entrypoint"].endswith("entry --set rounds=9 --resume=/home/x/raysim/runs/quickstart/r1")
        assert sent["metadata"]["algorithm"] == "fedgh"

    @pytest.mark.parametrize(
        ("state", "exit_code", "code"), [("FAILED", 2, 2), ("FAILED", None, 1), ("STOPPED", None, 130)]
    )
    def test_waiting_ends_as_the_job(
        self,
        capfd: pytest.CaptureFixture[str],
        use: Any,
        workplace: Path,
        monkeypatch: pytest.MonkeyPatch,
        state: str,
        exit_code: int | None,
        code: int,
    ) -> None:
        ended = Job.of(details("j", state, driver_exit_code=exit_code, message="no node left"))
        monkeypatch.setattr("raysim.jobs.watch.follow", lambda *given: ended)
        use(cluster(version=Versions.here().ray))
        output = self.output(capfd, "submit", QUICKSTART, "--id", "j", "--wait", code=code)
        assert f"raysim: j: {state}: " in output

    @pytest.mark.parametrize("address", [(), ("--address", "http://head:8265")])
    def test_ctrl_c_ends_the_following_only(
        self, capfd: pytest.CaptureFixture[str], use: Any, monkeypatch: pytest.MonkeyPatch, address: tuple[str, ...]
    ) -> None:
        def follow(*given: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("raysim.jobs.watch.follow", follow)
        here = cluster(details("j"))
        use(here)
        output = self.output(capfd, "logs", "j", "--follow", *address, code=130)
        stop = shlex.join(["raysim", "stop", "j", *address])
        assert output == f"j continues on the cluster; to stop it, run `{stop}`\n"
        assert ("stop", "j") not in here.client.asked


def test_help_is_fast() -> None:
    """Describing the commands imports nothing that takes long."""
    program = "import sys, raysim.cli.jobs; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "numpy", "pydantic", "rich", "aiohttp", "requests"} & set(loaded)
