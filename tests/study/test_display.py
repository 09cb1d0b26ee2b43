"""What a sweep shows: the time left, collapsed lists, and the cells that `--only` chooses."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.study.cells import CellState, Sweep, chosen_cells, state_of
from raysim.study.definition import load_sweep
from raysim.study.display import SweepDisplay
from raysim.study.workers import SweepProgress
from tests.cli.command import run
from tests.engine.scenarios import plain_digits as digits


def sweep_of(folder: Path, *sets: str, **content: Any) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": digits(output=str(folder / "runs")), **content}))
    return load_sweep(path, sets=sets)


METHODS = {"algorithm.name": ["fedgh", "standalone", "fd"]}


def waiting(sweep: Sweep) -> list[CellState]:
    return [CellState(cell, "waiting") for cell in sweep.cells]


def test_the_progress_line_tells_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds that are left, at the speed of those since the sweep began: 1 of 30 in a minute."""
    sweep = sweep_of(tmp_path, "rounds=10", grid=METHODS)
    now, shown = [1000.0], SweepDisplay(io.StringIO())
    monkeypatch.setattr("raysim.study.display.time.monotonic", lambda: now[0])
    states = waiting(sweep)
    states[1] = replace(states[1], state="done", rounds=10)  # by an earlier command
    assert shown.line(SweepProgress(states, [("fedgh", -1)])).endswith("10 of 30 rounds")
    now[0] += 30
    assert shown.line(SweepProgress(states, [("fedgh", 0)])).endswith("10 of 30 rounds")
    now[0] += 60
    assert shown.line(SweepProgress(states, [("fedgh", 1)])).endswith("11 of 30 rounds, about 19 min 00 s left")


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
        (["fedgh"], ["A seed=1", "A seed=2"]),
        (["STANDALONE"], ["b [x] seed=1", "b [x] seed=2"]),
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
    assert error.startswith("raysim: --only: 'fdd' given") and "did you mean 'fd'" in error
    assert not sweep.output.exists()
