"""How a job ends when Ray asks it to: its round may be cut off, what it writes then may not. Without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.stop import Stop
from raysim.jobs.job_log import read_log
from raysim.runs.signals import interruptible
from tests.conftest import REPOSITORY

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")


@contextmanager
def program(text: str, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program whose output can be read; killed if it is still there at the end."""
    run = subprocess.Popen(
        [sys.executable, "-c", text, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **env},
    )
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


# A whole job whose second round takes longer by what the arguments say, and its closing half a second. As in a job on
# Ray, the driver's handler of SIGTERM is Ray's from the start of the backend on: it ends the process wherever it is.
JOB = """
import os, signal, sys, time
from raysim.engine.inprocess import InProcessBackend
from raysim.jobs import entry
from raysim.runs import execution as session

round_s, insist_s, scenario, *sets = sys.argv[1:]
play, close, make_backend = InProcessBackend.send, InProcessBackend.close, session.make_backend

def tell(text):  # a line of its own, also in the middle of another
    os.write(1, f"\\n{text}\\n".encode())

def slow_round(self, t, *given, **named):
    if t == 2:
        tell("in round 2")
        time.sleep(float(round_s))
    return play(self, t, *given, **named)

def slow_close(self):
    close(self)
    tell("closing")
    time.sleep(0.5)

def of_ray(*given):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    return make_backend(*given)

InProcessBackend.send, InProcessBackend.close, session.make_backend = slow_round, slow_close, of_ray
entry.ROUND_DEADLINE_S = float(insist_s)
code = entry.main([entry.versions(), scenario, *(word for item in sets for word in ("--set", item))])
time.sleep(0.3)  # for a SIGTERM that is late
sys.exit(code)
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("round_s", "insist_s", "again", "rounds", "saved_round"),
    [
        ("60", "1", False, 1, None),  # the second SIGTERM comes in the round and cuts it off
        ("0", "60", True, 2, 2),  # the second comes in the closing, which continues
    ],
)
def test_a_stopped_job_writes_what_was_done(
    tmp_path: Path, tracking_store: str, round_s: str, insist_s: str, again: bool, rounds: int, saved_round: int | None
) -> None:
    sets = ["backend=in_process", "clients.count=4", "clients.models=[digits_mlp64]", "checkpoint.every=100"]
    sets += [f"tracking.uri={tracking_store}"]
    with program(JOB, round_s, insist_s, QUICKSTART, *sets, HOME=str(tmp_path)) as run:
        assert run.stdout is not None
        told = until(run, "in round 2")
        run.send_signal(signal.SIGTERM)
        if again:
            told += until(run, "closing")
            run.send_signal(signal.SIGTERM)
        began = time.monotonic()
        told += run.communicate(timeout=240)[0]
        took = time.monotonic() - began
    assert run.returncode == 130, told
    assert took < 50  # a round takes 60
    assert told.splitlines()[-1] == "raysim: stopped"
    (folder,) = (tmp_path / "raysim" / "runs" / "quickstart").iterdir()  # relative paths are in ~/raysim
    log = read_log(told)
    assert log.run_folder == str(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert log.summary == summary
    assert (summary["status"], summary["rounds"]) == ("interrupted", rounds), told
    checkpoint = CheckpointStore.open(open_storage(summary["checkpoint"]["folder"])).latest()
    assert (checkpoint.round if checkpoint else None) == saved_round


def until(run: subprocess.Popen[str], line: str) -> str:
    """What a program prints up to this line."""
    assert run.stdout is not None
    told = ""
    for shown in run.stdout:
        told += shown
        if shown == f"{line}\n":
            return told
    raise AssertionError(told)


class TestHandlers:
    """`launch.signals`, signal by signal."""

    @pytest.fixture(autouse=True)
    def _back(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGTERM)
        yield
        assert signal.getsignal(signal.SIGTERM) == before

    def test_rounds_end_after_the_first_and_at_once_after_the_second(self) -> None:
        stop = Stop(possible=True)
        with pytest.raises(KeyboardInterrupt), interruptible(stop):
            signal.raise_signal(signal.SIGTERM)
            assert stop.requested
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the second did not end it")

    def test_in_the_closing_sigterm_changes_nothing_and_the_first_ctrl_c_neither(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        stop = Stop(closing=True)
        with pytest.raises(KeyboardInterrupt), interruptible(stop):
            signal.raise_signal(signal.SIGTERM)
            assert capfd.readouterr().err == ""
            signal.raise_signal(signal.SIGINT)
            assert "again to end immediately" in capfd.readouterr().err
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second did not end it")


SLOW = """
import sys, time
from raysim.cli.main import main
import raysim.runs.run as start
def make_plan(scenario):
    print("reading", flush=True)
    time.sleep(60)
start.make_plan = make_plan
main(["launch", sys.argv[1], "--set", "backend=in_process"])
"""


def test_sigterm_while_the_data_is_read(workplace: Path) -> None:
    with program(SLOW, "quickstart") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "reading\n"
        run.send_signal(signal.SIGTERM)
        assert "raysim: stopped" in run.communicate(timeout=60)[0]
        assert run.returncode == 130
