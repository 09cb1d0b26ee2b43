"""What a sweep shows: the time left, collapsed lists, and the cells that `--only` chooses."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.common.files import hold
from raysim.jobs.job_log import read_log
from raysim.report.load import read_summary
from raysim.sweeps.cells import CellState, Sweep, chosen_cells, counts, placed, state_of, states_of
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.display import SweepDisplay
from raysim.sweeps.workers import SweepProgress
from tests.cli.command import run
from tests.comparison.runs import make_run
from tests.engine.scenarios import plain_digits as digits


def sweep_of(folder: Path, *sets: str, **content: Any) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": digits(output=str(folder / "runs")), **content}))
    return load_sweep(path, sets=sets)


METHODS = {"algorithm.name": ["fedgh", "standalone", "fd"]}


def waiting(sweep: Sweep) -> list[CellState]:
    return [CellState(cell, "waiting") for cell in sweep.cells]


def test_the_rounds_of_a_cell_count_while_it_is_being_resumed(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid={})
    shown, state = SweepDisplay(io.StringIO()), CellState(sweep.cells[0], "interrupted", None, 6)
    assert "6 of 10 rounds" in shown.line(SweepProgress([state], [(state.cell.name, -1)]))
    assert "7 of 10 rounds" in shown.line(SweepProgress([state], [(state.cell.name, 7)]))


def test_the_progress_line_tells_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds that are left, at the speed of those since the sweep began: 1 of 30 in a minute."""
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    now, shown = [1000.0], SweepDisplay(io.StringIO())
    monkeypatch.setattr("raysim.sweeps.display.time.monotonic", lambda: now[0])
    states = waiting(sweep)
    states[1] = replace(states[1], state="done", rounds=10)  # by an earlier command
    assert shown.line(SweepProgress(states, [("fedgh", -1)])).endswith("10 of 30 rounds")
    now[0] += 30
    assert shown.line(SweepProgress(states, [("fedgh", 0)])).endswith("10 of 30 rounds")
    now[0] += 60
    assert shown.line(SweepProgress(states, [("fedgh", 1)])).endswith("11 of 30 rounds, about 19 min 00 s left")


def test_the_progress_line_says_when_the_sweep_ends(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    shown = SweepDisplay(io.StringIO())
    progress = SweepProgress(waiting(sweep), [("fedgh", 2)])
    assert shown.line(progress) == "1 running, 2 waiting; 2 of 30 rounds"
    ending = replace(progress, stopping=True)
    assert shown.line(ending) == "ending: 1 cell will end after this round; 2 of 30 rounds are done"
    assert shown.line(replace(ending, running=[])).startswith("ending; 0 of 30")
    tuned = [replace(one, cell=replace(one.cell, is_trial=True)) for one in progress.states]
    trials = replace(progress, states=tuned)
    for one in (progress, ending, replace(ending, running=[]), trials):  # `raysim status` finds them in a job's log
        line = shown.line(one)
        assert read_log(f"something else\n{line}\n").progress == line


def test_rounds_that_a_failed_cell_did_not_do_are_neither_done_nor_left(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    shown = SweepDisplay(io.StringIO())
    states = [replace(one, state="failed", rounds=3) for one in waiting(sweep)]
    assert shown.line(SweepProgress(states, [])) == "3 failed; 9 of 9 rounds"
    assert shown.line(SweepProgress(states, [("fd", 4)])) == "1 running, 2 failed; 10 of 16 rounds"  # it is tried again


def test_a_trial_that_halving_paused_waits(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    states = [replace(one, state="interrupted", rounds=3) for one in waiting(sweep)]
    trials = [replace(one, cell=replace(one.cell, is_trial=True)) for one in states]
    shown = SweepDisplay(io.StringIO())
    assert shown.line(SweepProgress(states, [])) == "3 interrupted; 9 of 30 rounds"
    assert shown.line(SweepProgress(trials, [("fd", 4)])) == "trials: 1 running, 2 waiting; 10 of 30 rounds"


def test_a_cell_that_writes_its_results_is_closing(tmp_path: Path) -> None:
    """It was called interrupted between its last round and its end."""
    sweep = sweep_of(tmp_path, grid={})
    (cell,) = sweep.cells
    folder = make_run(sweep.output / cell.folder_name / "run", accuracy=[0.1, 0.2, 0.3])
    summary = folder / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "status": "closing", "dataset": {}}))
    assert states_of(sweep)[0].state == "interrupted"  # no process holds the lock
    (folder / "logs").mkdir()
    handle = hold(folder / "logs" / ".lock")
    try:
        (state,) = states_of(sweep)
    finally:
        os.close(handle)
    assert state.state == "closing" and counts([state]) == "1 closing"


def test_the_state_of_a_cell_is_that_of_its_finished_or_else_its_latest_run(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, grid={})
    (cell,) = sweep.cells

    def found(*runs: dict[str, Any]) -> tuple[str, str]:
        for i, summary in enumerate(runs):
            folder = sweep.output / cell.folder_name / f"run-{i}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "summary.json").write_text(json.dumps({"rounds": 1, **summary}))
        state = state_of(cell, sweep.output)
        return state.state, state.folder.name if state.folder is not None else ""

    failed, interrupted = {"status": "failed", "error": "no"}, {"status": "interrupted"}
    assert found(failed, interrupted) == ("interrupted", "run-1")
    assert found(interrupted, failed) == ("failed", "run-1")
    assert found({"status": "finished"}, failed) == ("done", "run-0")


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ([], ["A seed=1", "A seed=2", "b [x] seed=1", "b [x] seed=2"]),
        (["A"], ["A seed=1", "A seed=2"]),
        (["fedgh"], ["A seed=1", "A seed=2"]),
        (["STANDALONE"], ["b [x] seed=1", "b [x] seed=2"]),
        (["b [x]"], ["b [x] seed=1", "b [x] seed=2"]),
        (["b [x] seed=2", "a seed=1"], ["A seed=1", "b [x] seed=2"]),
        (["*seed=2"], ["A seed=2", "b [x] seed=2"]),
    ],
)
def test_cells_are_chosen_by_name(tmp_path: Path, only: list[str], names: list[str]) -> None:
    runs = {"A": ["algorithm.name=fedgh"], "b [x]": ["algorithm.name=standalone"]}
    sweep = sweep_of(tmp_path, runs=runs, seeds="1..2")
    assert [cell.name for cell in chosen_cells(sweep, only)] == names


def test_only_lists_what_it_chooses(capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
    sweep = sweep_of(workplace, grid=METHODS)
    code, out, _ = run(capfd, "sweep", "sweep.yaml", "--only", "fd", "--status")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["state", "waiting", "1"] and " fd\n" in out
    code, out, error = run(capfd, "sweep", "sweep.yaml", "--only", "fdd")
    assert (code, out) == (2, "")
    assert error == (
        "raysim: --only: 'fdd' given, but no cell has this name; did you mean 'fd'?; allowed: fedgh, standalone, fd\n"
    )
    assert not sweep.output.exists()


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_only_runs_what_it_chooses(capfd: pytest.CaptureFixture[str], workplace: Path) -> None:
    """The other cells stay as they are, and the sweep is the same: without --only, its finished cells are skipped."""
    sweep = sweep_of(workplace, grid=METHODS, set=["rounds=1"])
    code, out, error = run(capfd, "sweep", "sweep.yaml", "--only", "fd", "--parallel", "1")
    assert code == 0 and "1 done, 2 waiting" in out
    assert set(re.findall(r"\d+ waiting", error)) == {"1 waiting"}  # the progress is that of the chosen cells
    assert [one.state for one in states_of(sweep)] == ["waiting", "waiting", "done"]
    digest = read_summary(states_of(sweep)[2].folder or Path())["state_digest"]
    code, out, _ = run(capfd, "sweep", "sweep.yaml", "--parallel", "1")
    assert code == 0 and out.splitlines()[4] == "3 done"
    states = states_of(sweep)
    assert read_summary(states[2].folder or Path())["state_digest"] == digest
    assert len(list(sweep.output.glob("*/*/summary.json"))) == 3


def test_the_rounds_of_a_running_cell(tmp_path: Path) -> None:
    """Its summary.json has no rounds before it ends; rounds.parquet has them."""
    sweep = sweep_of(tmp_path, grid={})
    (cell,) = sweep.cells
    folder = make_run(sweep.output / cell.folder_name / "run", accuracy=[0.1, 0.2, 0.3])
    (folder / "summary.json").write_text('{"status": "running"}')
    (folder / "logs").mkdir()
    (folder / "logs" / ".lock").write_text("")
    (state,) = states_of(sweep)
    assert (state.state, state.rounds) == ("interrupted", 2)  # no process holds the lock
    assert placed(cell, sweep).rounds == 3
