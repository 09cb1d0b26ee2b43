"""What a sweep shows: the time left, collapsed lists, and the cells that `--only` chooses."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.common.files import hold
from raysim.jobs.job_log import read_log
from raysim.report.load import read_summary
from raysim.sweeps.cells import Cell, Sweep, placed
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.display import PlainProgress
from raysim.sweeps.estimate import Cost, Estimator
from raysim.sweeps.listing import LONG, collapsed, is_long, print_plan, print_states
from raysim.sweeps.loop import SweepProgress
from raysim.sweeps.only import chosen_cells
from raysim.sweeps.state import CellState, counts, state_of, states_of
from raysim.sweeps.time_left import PLAN_AFTER_S, TimeLeft
from tests.cli.command import run
from tests.comparison.runs import make_run
from tests.engine.scenarios import plain_digits as digits


def sweep_of(folder: Path, *sets: str, **content: Any) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": digits(output=str(folder / "runs")), **content}))
    return load_sweep(path, sets=sets)


METHODS = {"algorithm.name": ["fedgh", "standalone", "fd"]}


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def waiting(sweep: Sweep) -> list[CellState]:
    return [CellState(cell, "waiting") for cell in sweep.cells]


def test_the_time_left_by_measured_rounds(tmp_path: Path) -> None:
    """fedgh takes 2 s per round, standalone 1 s; fd, not begun, counts as their mean."""
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    clock, states = Clock(), waiting(sweep)
    left = TimeLeft(lambda cells: pytest.fail("rounds were measured"), clock)
    progress = SweepProgress(states, [("fedgh", -1), ("standalone", -1)])
    left.update(progress)
    assert left.seconds(progress) is None
    for second, running in ((2, [("fedgh", 1), ("standalone", 2)]), (4, [("fedgh", 2), ("standalone", 4)])):
        clock.now = 1000.0 + second
        progress = SweepProgress(states, running)
        left.update(progress)
        # With both at work: the sum of what is left, divided by two; fd has 10 rounds of 1.5 s.
        rest = (10 - running[0][1]) * 2 + (10 - running[1][1]) * 1 + 15
        assert left.seconds(progress) == pytest.approx(rest / 2)
    # standalone ends after 10 s; fd begins, and the estimate follows what it takes: 5 s per round.
    done = [states[0], replace(states[1], state="done", rounds=10), states[2]]
    clock.now = 1010.0
    progress = SweepProgress(done, [("fedgh", 5), ("fd", -1)])
    left.update(progress)
    assert left.seconds(progress) == pytest.approx(15)  # fd alone; the half of both is less
    clock.now = 1015.0
    progress = SweepProgress(done, [("fedgh", 7), ("fd", 1)])
    left.update(progress)
    assert left.seconds(progress) == pytest.approx(9 * 5)


def test_the_time_left_is_of_all_seeds_that_have_ended(tmp_path: Path) -> None:
    """The first takes 20 s for ten rounds, the second 40 s: the third 3 s per round."""
    sweep = sweep_of(tmp_path, "rounds=10", seeds="1..3")
    clock, states = Clock(), waiting(sweep)
    left = TimeLeft(lambda cells: pytest.fail("rounds were measured"), clock)
    for i, seconds in enumerate((20.0, 40.0)):
        left.update(SweepProgress(states, [(states[i].cell.name, -1)]))
        clock.now += seconds
        states[i] = replace(states[i], state="done", rounds=10)
    progress = SweepProgress(states, [(states[2].cell.name, -1)])
    left.update(progress)
    assert left.seconds(progress) == pytest.approx(10 * 3)


def test_the_time_left_before_the_first_round(tmp_path: Path) -> None:
    """Timed steps tell it, once, after some seconds without a round; a measured round then corrects all plans."""
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    clock, states = Clock(), waiting(sweep)
    asked: list[list[str]] = []

    def plan(cells: Sequence[Cell]) -> Mapping[str, float]:
        asked.append([cell.name for cell in cells])
        return {"fedgh": 10.0, "standalone": 30.0}

    left = TimeLeft(plan, clock)
    progress = SweepProgress(states, [("fedgh", -1)])
    left.update(progress)
    assert left.seconds(progress) is None and not asked
    clock.now += PLAN_AFTER_S
    assert left.seconds(progress) == pytest.approx(100 - 10 + 300 + 200)  # 10 s of the first round have passed
    left.seconds(progress)
    assert asked == [["fedgh", "standalone", "fd"]]
    clock.now = 1040.0  # the first round took 40 s, four times the plan
    progress = SweepProgress(states, [("fedgh", 1)])
    left.update(progress)
    assert left.seconds(progress) == pytest.approx(9 * 40 + 10 * 30 * 4 + 10 * 40)


def test_a_resumed_cell_counts_only_its_new_rounds(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid={})
    clock, state = Clock(), CellState(sweep.cells[0], "interrupted", None, 6)
    left = TimeLeft(lambda cells: {}, clock)
    name = state.cell.name
    left.update(SweepProgress([state], [(name, -1)]))
    clock.now += 3
    progress = SweepProgress([state], [(name, 7)])
    left.update(progress)
    assert left.seconds(progress) == pytest.approx(3 * 3)


def test_the_rounds_of_a_cell_count_while_it_is_being_resumed(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid={})
    shown, state = PlainProgress(sweep, io.StringIO()), CellState(sweep.cells[0], "interrupted", None, 6)
    assert "6 of 10 rounds" in shown.line(SweepProgress([state], [(state.cell.name, -1)]))
    assert "7 of 10 rounds" in shown.line(SweepProgress([state], [(state.cell.name, 7)]))


def test_steps_are_timed_for_each_data_and_model_but_not_for_each_method(workplace: Path) -> None:
    sweep = sweep_of(workplace, grid={**METHODS, "training.batch_size": [16, 32]})
    planned = Estimator(sweep).seconds_per_round(sweep.cells)
    assert planned.keys() == {cell.name for cell in sweep.cells} and all(value > 0 for value in planned.values())
    assert len(set(planned.values())) == 2
    assert Estimator(sweep).seconds_per_round(sweep.cells, within_s=0.0) == {}


def test_the_progress_line_tells_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    clock, stream = Clock(), io.StringIO()
    shown = PlainProgress(sweep, stream)
    shown.left.clock = clock
    monkeypatch.setattr("raysim.sweeps.display.LINE_EVERY_S", 0.0)
    shown.show(SweepProgress(waiting(sweep), [("fedgh", -1)]))
    clock.now += 60
    shown.show(SweepProgress(waiting(sweep), [("fedgh", 1)]))
    assert "1 running, 2 waiting; 1 of 30 rounds, about 29 min 00 s left" in stream.getvalue()


def test_the_last_round_may_take_longer_than_estimated(tmp_path: Path) -> None:
    """The line said "about 0 ms left" until that round ended."""
    sweep = sweep_of(tmp_path, "rounds=40", grid={})
    clock, shown = Clock(), PlainProgress(sweep, io.StringIO())
    shown.left.clock = clock
    shown.left.update(SweepProgress(waiting(sweep), [(sweep.cells[0].name, -1)]))
    clock.now += 39.0
    progress = SweepProgress(waiting(sweep), [(sweep.cells[0].name, 39)])
    shown.left.update(progress)
    assert shown.line(progress).endswith("39 of 40 rounds, about 1.00 s left")
    clock.now += 5.0
    assert shown.line(progress).endswith("39 of 40 rounds")


def test_the_time_left_includes_rounds_of_later_cells(tmp_path: Path) -> None:
    """fedgh takes 2 s per round, standalone 4 s. Later rounds count like those of their method; of fd, as the mean."""
    sweep = sweep_of(tmp_path, "rounds=10", grid={"algorithm.name": ["fedgh", "standalone"]})
    clock, states = Clock(), waiting(sweep)
    left = TimeLeft(lambda cells: pytest.fail("rounds were measured"), clock)
    left.update(SweepProgress(states, [("fedgh", -1), ("standalone", -1)]))
    clock.now += 4.0
    progress = SweepProgress(states, [("fedgh", 2), ("standalone", 1)])
    left.update(progress)
    now_s = 9 * 4.0  # of the slower cell
    assert left.seconds(progress) == pytest.approx(now_s)
    later = replace(progress, later={"fedgh": 20, "standalone": 5, "fd": 10})
    assert left.seconds(later) == pytest.approx(now_s + (20 * 2 + 5 * 4 + 10 * 3) / 2)


def test_the_progress_line_counts_the_rounds_of_the_whole_sweep_and_says_when_it_ends(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    shown = PlainProgress(sweep, io.StringIO())
    progress = SweepProgress(waiting(sweep), [("fedgh", 2)], earlier=40, later={"fedgh": 50, "fd": 8})
    assert shown.line(progress) == "1 running, 2 waiting; 42 of 128 rounds"
    ending = replace(progress, stopping=True)
    assert shown.line(ending) == "ending: 1 cell will end after this round; 42 of 128 rounds are done"
    assert shown.line(replace(ending, running=[])).startswith("ending; 40 of 128")
    tuned = [replace(one, cell=replace(one.cell, values=(("a", 1),))) for one in progress.states]
    trials = replace(progress, states=tuned)
    for one in (progress, ending, replace(ending, running=[]), trials):  # `raysim status` finds them in a job's log
        line = shown.line(one)
        assert read_log(f"something else\n{line}\n").progress == line


def test_rounds_that_a_failed_cell_did_not_do_are_neither_done_nor_left(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    shown = PlainProgress(sweep, io.StringIO())
    states = [replace(one, state="failed", rounds=3) for one in waiting(sweep)]
    assert shown.line(SweepProgress(states, [])) == "3 failed; 9 of 9 rounds"
    assert shown.line(SweepProgress(states, [("fd", 4)])) == "1 running, 2 failed; 10 of 16 rounds"  # it is tried again


def test_a_trial_that_halving_paused_waits(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    states = [replace(one, state="interrupted", rounds=3) for one in waiting(sweep)]
    trials = [replace(one, cell=replace(one.cell, values=(("training.lr", 0.1),))) for one in states]
    shown = PlainProgress(sweep, io.StringIO())
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
        state = state_of(cell, sweep)
        return state.state, state.folder.name if state.folder is not None else ""

    failed, interrupted = {"status": "failed", "error": "no"}, {"status": "interrupted"}
    assert found(failed, interrupted) == ("interrupted", "run-1")
    assert found(interrupted, failed) == ("failed", "run-1")
    assert found({"status": "finished"}, failed) == ("done", "run-0")


def test_long_lists_are_collapsed(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS, seeds="1..7")
    states = waiting(sweep)
    states[:4] = [replace(one, state="done", rounds=10) for one in states[:4]]
    states[4] = replace(states[4], state="running", rounds=3)
    states[7] = replace(states[7], state="failed", reason="out of\nmemory")
    states[8] = replace(states[8], state="failed", reason="out of\nmemory")
    states[9] = replace(states[9], state="interrupted", rounds=2, reason="killed")
    shown = io.StringIO()
    print_states(states, shown)
    assert shown.getvalue().splitlines() == [
        "fedgh: 4 of 7 seeds done, 1 running, 2 waiting; 43 of 70 rounds",
        "standalone: 0 of 7 seeds done, 1 interrupted, 2 failed, 4 waiting; 2 of 70 rounds",
        "    2 failed: out of memory",
        "    1 interrupted: killed",
        "fd: 0 of 7 seeds done, 7 waiting; 0 of 70 rounds",
        "(a line per cell: --all)",
        "4 done, 1 running, 1 interrupted, 2 failed, 13 waiting",
    ]
    shown = io.StringIO()
    print_states(states, shown, every=True)
    assert len(shown.getvalue().splitlines()) == len(states) + 2 > LONG
    assert not is_long(states[:LONG])


def test_methods_are_collapsed_if_variants_are_many(tmp_path: Path) -> None:
    rates = [0.001 * (i + 1) for i in range(12)]
    several = waiting(sweep_of(tmp_path, grid={**METHODS, "training.lr": rates}))
    assert collapsed(several)[0] == "fedgh: 0 of 12 cells done, 12 waiting; 0 of 36 rounds"
    assert len(collapsed(several)) == 3
    one_method = waiting(sweep_of(tmp_path, grid={"training.lr": [0.001 * (i + 1) for i in range(30)]}))
    assert not is_long(one_method)  # a line for all of them would hide every variant


def test_the_plan_of_a_long_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = waiting(sweep_of(tmp_path, grid=METHODS, seeds="1..7"))
    print_plan(states, [Cost(10.0, 1024.0)] * 20 + [Cost(None, None)], 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fedgh: 0 of 7 seeds done, 7 waiting; 10.0 s, 1.00 KiB each"
    assert lines[-1] == (
        "estimated time, if 2 cells run at a time on an idle machine: about 1 min 51 s. This includes 11.3 s to "
        "start the processes (once) and 21 cells. Not included: 1 cell of unknown length."
    )
    print_plan(states, [Cost(10.0, 1024.0)] * 21, 2, every=True)
    assert len(capsys.readouterr().out.splitlines()) == 21 + 3


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
    assert code == 0 and "2 other cells are not done; to run all cells, leave out --only" in out
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
