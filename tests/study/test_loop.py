"""Sweeps on Ray: each cell once and with the bits of a run by itself, whatever happens to the others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from raysim.results.load import read_summary
from raysim.runs.run import run
from raysim.scenario.parse import parse_scenario
from raysim.study.cells import CellState, Sweep, counts, states_of
from raysim.study.definition import load_sweep
from raysim.study.loop import run_sweep
from raysim.study.workers import SweepProgress
from tests.conftest import said
from tests.engine.scenarios import plain_digits as digits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def sweep_of(folder: Path, *sets: str, **content: Any) -> Sweep:
    """A sweep of tiny scenarios, two methods unless the content says otherwise."""
    path = folder / "sweep.yaml"
    base = digits(training={"batch_size": 64}, output=str(folder / "runs"))
    content = {"base": base, "grid": {"algorithm.name": ["fedgh", "standalone"]}, **content}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_sweep(path, sets=sets)


def run_folders(sweep: Sweep) -> list[Path]:
    return sorted(path.parent for path in sweep.output.glob("*/*/summary.json"))


def digest(state: CellState) -> str:
    assert state.folder is not None
    return str(read_summary(state.folder)["state_digest"])


def test_every_cell_is_run_once_and_as_by_itself(workplace: Path) -> None:
    sweep = sweep_of(workplace, seeds=[2])
    seen: list[SweepProgress] = []
    states = run_sweep(sweep, parallel=2, show=seen.append)
    assert counts(states) == "2 done"
    assert max(len(progress.running) for progress in seen) == 2
    alone = run(parse_scenario(digits(training={"batch_size": 64}), ["seed=2"]), quiet=True)
    assert digest(states[0]) == alone.state_digest
    assert len(run_folders(sweep)) == 2


@pytest.mark.large
def test_a_worker_that_dies_costs_its_cell_nothing_but_time(workplace: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "raysim.study")
    sweep = sweep_of(workplace, "rounds=40", "checkpoint.every=1", grid={"algorithm.name": ["fedgh"]})
    killed: list[int] = []

    def kill(progress: SweepProgress) -> None:
        if not killed and progress.running and progress.running[0][1] >= 1:
            # A cell is a child of Ray's process on this node; other tests may have a Ray of their own.
            for process in psutil.Process().children(recursive=True):
                if process.cmdline()[:1] == ["ray::_work"]:
                    process.kill()
                    killed.append(process.pid)

    (state,) = run_sweep(sweep, parallel=1, show=kill)
    assert state.state == "done", said(caplog)
    assert killed and not said(caplog)
    assert len(run_folders(sweep)) == 1
    alone = parse_scenario(digits(training={"batch_size": 64}, rounds=40))
    assert digest(state) == run(alone, quiet=True).state_digest


@pytest.mark.large
def test_a_cell_that_asks_for_client_actors_has_the_same_bits(workplace: Path) -> None:
    actors = ["algorithm.name=standalone", "backend=ray", "resources.actors=2"]
    sweep = sweep_of(workplace, grid={}, runs={"whole": ["algorithm.name=fedgh"], "split": actors})
    seen: list[SweepProgress] = []
    states = run_sweep(sweep, parallel=1, show=seen.append)
    assert counts(states) == "2 done"
    summaries = [read_summary(state.folder) for state in states if state.folder]
    assert [(summary["backend"], summary["actors"]) for summary in summaries] == [("in_process", 0), ("ray", 2)]
    assert ("split", 3) in [one for progress in seen for one in progress.running]
    alone = parse_scenario(digits(training={"batch_size": 64}), ["algorithm.name=standalone"])
    assert digest(states[1]) == run(alone, quiet=True).state_digest


@pytest.mark.large
def test_an_interrupt_ends_cells_after_their_round(workplace: Path) -> None:
    sweep = sweep_of(workplace, "rounds=400", seeds="1..3", grid={"algorithm.name": ["standalone"]})

    sent: list[int] = []

    def interrupt(progress: SweepProgress) -> None:
        if not sent and len(progress.running) == 2 and all(done >= 1 for _, done in progress.running):
            sent.append(signal.SIGINT)  # once: a second one would end all at once
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, parallel=2, show=interrupt)
    states = states_of(sweep)
    assert counts(states) == "2 interrupted, 1 waiting"
    assert all(state.rounds >= 1 for state in states[:2])


@pytest.mark.large
def test_sigterm_ends_a_sweep_in_the_background_of_a_script(workplace: Path) -> None:
    """There, processes ignore Ctrl-C from the beginning."""
    sweep = sweep_of(workplace, "rounds=100000", grid={"algorithm.name": ["standalone"]})
    begin = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from raysim.cli.main import main; main()"
    command = [sys.executable, "-c", begin, "sweep", str(workplace / "sweep.yaml"), "--set", "rounds=100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if " of 100000 rounds" in line and "; 0 of" not in line:
                break
        process.terminate()
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, output
    (state,) = states_of(sweep)
    assert state.state == "interrupted" and state.rounds >= 1
