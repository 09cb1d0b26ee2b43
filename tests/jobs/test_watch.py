"""The state of jobs: reading and following their logs, stopping them."""

from __future__ import annotations

import json

import pytest

from raysim.common.errors import RunError
from raysim.jobs import watch
from raysim.jobs.job_log import PREFIX, JobLog, read_log, visible
from raysim.jobs.watch import Job, follow, look, stop, why
from tests.jobs.fakes import cluster, details

MARK = PREFIX + json.dumps({"run_folder": "/home/x/raysim/runs/quickstart/r1", "run_id": "r1"})
END = PREFIX + json.dumps({"summary": {"rounds": 3, "status": "finished"}})
LOG = f"quickstart: 3 rounds\n{MARK}\nround 1/3  accuracy 10.0% all\nround 3/3  accuracy 30.0% all\n{END}\n"


class TestLog:
    def test_what_it_tells(self) -> None:
        log = read_log(LOG)
        assert log.run_folder == "/home/x/raysim/runs/quickstart/r1"
        assert log.run_id == "r1"
        assert log.progress == "round 3/3  accuracy 30.0% all"
        assert log.summary == {"rounds": 3, "status": "finished"}

    def test_nothing_yet(self) -> None:
        assert read_log("") == JobLog()

    @pytest.mark.parametrize("mark", ["[]", "null", "7", "[" * 9999, '"x"', '{"run_id": []}', '{"summary": []}'])
    def test_a_mark_that_is_none(self, mark: str) -> None:
        assert read_log(f"{MARK}\n{PREFIX}{mark}\n") == read_log(MARK)

    def test_text_is_fit_for_a_terminal(self) -> None:
        log = read_log("round 1/3 \x1b[31mred\x1b[0m\r\nraysim: a\x9bb\x07\ud800\u202ec\n")
        assert (log.progress, log.problem) == ("round 1/3 red", "abc")
        assert visible("\x1b]0;title\x07a\tb\r\n\x1b[2J") == "a\tb\n\n"

    def test_a_mark_that_was_cut_off(self) -> None:
        assert read_log(f"{MARK}\n{END[:-4]}").summary == {}

    def test_the_sentence_that_it_ended_with(self) -> None:
        assert (
            read_log("note: torch differs\nraysim: data.root: no such folder\n").problem == "data.root: no such folder"
        )

    def test_marks_are_not_for_people(self) -> None:
        assert visible(LOG) == "quickstart: 3 rounds\nround 1/3  accuracy 10.0% all\nround 3/3  accuracy 30.0% all\n"

    def test_a_last_line_without_an_end(self) -> None:
        assert visible("a\nb") == "a\nb\n"
        assert visible("") == ""


class TestJob:
    @pytest.mark.parametrize(
        ("state", "exit_code", "code"),
        [
            ("SUCCEEDED", 0, 0),
            ("FAILED", 1, 1),
            ("FAILED", 2, 2),
            ("FAILED", 130, 130),
            ("FAILED", 137, 1),
            ("FAILED", None, 1),
            ("STOPPED", None, 130),
        ],
    )
    def test_exit_codes(self, state: str, exit_code: int | None, code: int) -> None:
        assert Job.of(details("j", state, driver_exit_code=exit_code)).code == code

    def test_how_long(self) -> None:
        assert Job.of(details("j", "SUCCEEDED")).seconds == 2.5

    def test_why(self) -> None:
        failed = details("j", "FAILED", driver_exit_code=127, message="Job failed\nlast lines")
        assert "no `python` on the cluster's PATH" in why(Job.of(failed), JobLog())
        assert why(Job.of(failed), JobLog(problem="no data")) == "no data"
        failed.driver_exit_code = -9
        assert "exit code -9" in why(Job.of(failed), JobLog())
        failed.driver_exit_code = None
        assert why(Job.of(failed), JobLog()) == "Job failed"

    def test_look(self) -> None:
        job, log = look(cluster(details("j"), logs={"j": LOG}), "j")
        assert (job.state, job.name, log.run_id) == ("RUNNING", "quickstart", "r1")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.002)


@pytest.mark.usefixtures("quick")
class TestFollow:
    def test_a_cluster_that_does_not_answer_for_a_moment_repeats_and_loses_nothing(self) -> None:
        text = f"one\ntwo\n{MARK}\nthree\nfour"
        here = cluster(details("j"))
        left = list(range(len(text)))

        def get_job_logs(job: str) -> str:
            if left and left[0] % 7 == 3:
                left.pop(0)
                raise ConnectionResetError("Connection reset")
            return text[: left.pop(0)] if left else text

        here.client.get_job_logs = get_job_logs
        here.client.get_job_info = lambda job: details("j") if left else details("j", "SUCCEEDED")
        shown: list[str] = []
        assert follow(here, "j", shown.append).code == 0
        assert "".join(shown) == "one\ntwo\nthree\nfour\n"
        assert shown.index("one\n") < shown.index("two\n")  # while it runs

    def test_a_cluster_that_does_not_come_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "RECONNECT_S", 0.1)
        here = cluster(details("j"))
        answers = iter([details("j")])

        def get_job_info(job: str) -> object:
            try:
                return next(answers)
            except StopIteration:
                raise ConnectionRefusedError("Connection refused") from None

        here.client.get_job_info = get_job_info
        with pytest.raises(RunError, match="does not answer any more"):
            follow(here, "j", print)


@pytest.mark.usefixtures("quick")
class TestStop:
    def test_it_waits_for_the_end(self) -> None:
        here = cluster(details("j"))
        assert stop(here, "j").state == "STOPPED"
        assert ("stop", "j") in here.client.asked

    def test_one_that_had_ended_is_left_alone(self) -> None:
        here = cluster(details("j", "SUCCEEDED"))
        assert stop(here, "j").state == "SUCCEEDED"
        assert ("stop", "j") not in here.client.asked

    def test_one_that_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "STOP_S", -2.9)
        here = cluster(details("j"))
        here.client.stop_job = lambda job: True
        with pytest.raises(RunError, match="asked to stop, but is still RUNNING"):
            stop(here, "j")
