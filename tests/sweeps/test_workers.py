"""Cells go back into the queue when their workers die, and run folders come from nodes with disks of their own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from raysim.common.files import hold
from raysim.common.results import LOCK
from raysim.engine.policies.placement import Node
from raysim.engine.ray import tasks as ray_tasks
from raysim.engine.ray.tasks import Tasks, gpu_share
from raysim.engine.stop import Stop
from raysim.report.load import read_rounds
from raysim.runs.run import run
from raysim.scenario.parse import parse_scenario
from raysim.sweeps import workers as cells_of_workers
from raysim.sweeps.cells import CellState, Sweep, counts, states_of
from raysim.sweeps.loop import lock
from raysim.sweeps.workers import CellTask, run_cell, run_cells
from tests.conftest import REPOSITORY, said
from tests.engine.scenarios import plain_digits as digits
from tests.sweeps.test_loop import digest, run_folders, sweep_of
from tests.sweeps.test_tuning import Unrecorded


@dataclass
class Pool:
    """One cell at a time in this process, in the place of `Tasks`.

    rounds: the rounds after which the process of a cell dies, of each attempt; -1: before the run begins. dead: whether
    Ray then gives up. private: whether the tasks do not see the driver's disk.
    """

    rounds: dict[str, list[int]] = field(default_factory=dict)
    dead: bool = False
    private: bool = False
    given: list[CellTask] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    when_dead: Callable[[], object] = lambda: None
    limit: int | None = 1

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None: ...

    @property
    def has_room(self) -> bool:
        return not self.running

    @property
    def several_nodes(self) -> bool:
        return self.private

    def start(self, name: str, task: CellTask, expected: int) -> None:
        self.given.append(replace(task, lock=b"of another driver") if self.private else task)
        self.running = {name: -1}

    def wait(self) -> list[tuple[str, Any]]:
        (name,), self.running, task = self.running, {}, self.given[-1]
        for last in self.rounds.get(name, []):
            if last >= 0:
                cell = replace(task.cell, until=last)
                assert run_cell(replace(task, cell=cell), Stop(), lambda t: None).error == ""
            self.when_dead()
        return [(name, "its node died" if self.dead else run_cell(task, Stop(), lambda t: None))]


def run_all(sweep: Sweep, pool: Pool, store: str) -> dict[str, CellState]:
    with contextlib.ExitStack() as cleanup:
        lock(sweep, cleanup)
        states = {one.cell.name: one for one in states_of(sweep)}
        left = [one for one in states.values() if one.state != "done"]
        parent: Any = Unrecorded(store, sweep.name, sweep.output)
        run_cells(left, states, sweep, parent, pool, lambda running, stopping: None)  # type: ignore[arg-type]
    return states


@pytest.fixture
def sweep(workplace: Path) -> Sweep:
    return sweep_of(workplace, "rounds=4", "checkpoint.every=1")


def rounds_of(folder: Path) -> list[int]:
    return list(read_rounds(folder)["round"].to_pylist())


def test_a_lost_cell_is_resumed_and_no_round_is_recorded_twice(sweep: Sweep, tracking_store: str) -> None:
    states = run_all(sweep, Pool({"fedgh": [-1, 2], "standalone": [4]}), tracking_store)
    assert counts(states.values()) == "2 done"
    assert [rounds_of(folder) for folder in run_folders(sweep)] == [[0, 1, 2, 3, 4]] * 2
    alone = run(parse_scenario(digits(training={"batch_size": 64}, rounds=4)), quiet=True)
    assert digest(states["fedgh"]) == alone.state_digest


def test_a_cell_whose_process_dies_too_often_runs_with_the_next_command(sweep: Sweep, tracking_store: str) -> None:
    states = run_all(sweep, Pool({"fedgh": [1]}, dead=True), tracking_store)
    assert (states["fedgh"].state, states["fedgh"].reason) == ("interrupted", "its node died")
    assert states["standalone"].state == "waiting"
    assert counts(run_all(sweep, Pool(), tracking_store).values()) == "2 done"


def test_a_run_that_a_lost_process_still_holds_is_not_begun_twice(
    sweep: Sweep, tracking_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process on a node that lost its network: the cell waits for its end, for a limited time."""
    monkeypatch.setattr(cells_of_workers, "LOCKED_S", 0.0)
    pool = Pool({"fedgh": [1]}, when_dead=lambda: hold(run_folders(sweep)[0] / LOCK))
    states = run_all(sweep, pool, tracking_store)
    assert states["standalone"].state == "done"
    assert states["fedgh"].rounds == 1 and len(list(sweep.output.glob("fedgh-*/*/run.json"))) == 1
    assert "is still running" in states["fedgh"].reason


def test_checkpoints_that_are_lost_with_a_node(sweep: Sweep, tracking_store: str) -> None:
    """Then the cell begins again."""
    pool = Pool({"fedgh": [2]}, when_dead=lambda: shutil.rmtree(run_folders(sweep)[0] / "checkpoints"))
    assert counts(run_all(sweep, pool, tracking_store).values()) == "2 done"


def test_a_node_with_a_disk_of_its_own(sweep: Sweep, tracking_store: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its runs are sent, and a run to resume, such as a trial of a tuning, is sent there with its checkpoints."""
    shorter = replace(sweep, cells=(replace(sweep.cells[0], until=2), sweep.cells[1]))
    states = run_all(shorter, Pool(private=True), tracking_store)
    assert [(one.state, one.rounds) for one in states.values()] == [("done", 2), ("done", 4)]
    assert "MLFLOW_TRACKING_URI" in said(caplog)[0]
    pool = Pool(private=True)
    run_all(sweep, pool, tracking_store)
    assert [bool(task.files) for task in pool.given] == [True]
    assert counts(states_of(sweep)) == "2 done"
    assert len(run_folders(sweep)) == 2
    assert rounds_of(run_folders(sweep)[0]) == [0, 1, 2, 3, 4]
    alone = run(parse_scenario(digits(training={"batch_size": 64}, rounds=4)), quiet=True)
    assert digest(states_of(sweep)[0]) == alone.state_digest


def test_the_number_of_tasks_follows_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node("a", 2.0, 0.0), Node("b", 1.0, 0.0)]
    monkeypatch.setattr(ray_tasks.session, "nodes", lambda: nodes)

    def room(limit: int | None = None) -> int:
        tasks = Tasks(run_cell, limit)
        while tasks.has_room:
            tasks.running[f"cell {len(tasks.running)}"] = -1
        return len(tasks.running)

    assert room() == 3
    nodes.pop(0)
    assert room() == 1
    nodes.extend([Node("c", 4.0, 0.0)])
    assert room() == 5
    nodes.clear()
    assert room() == 1  # a task waits for a node
    assert room(7) == 7


DYING = """
import os
from pathlib import Path
from ray.cluster_utils import Cluster
from raysim.common.logs import show_logs
from raysim.sweeps.loop import run_sweep
from raysim.sweeps.cells import counts
from tests.sweeps.test_loop import digest, run_folders, sweep_of
from tests.sweeps.test_workers import rounds_of

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(4)]
os.environ["RAY_ADDRESS"] = cluster.address
sweep = sweep_of(Path.cwd(), "rounds=6", "checkpoint.every=1", seeds="1..12")
widths, notes = [], []

def show(progress):
    done = sum(one.state == "done" for one in progress.states)
    widths.append(len(progress.running))
    if len(nodes) > 2 and done >= 8 * (5 - len(nodes)) and len(progress.running) == len(nodes):
        cluster.remove_node(nodes.pop(), allow_graceful=False)

with show_logs(notes.append, "raysim.sweeps"):
    states = run_sweep(sweep, show=show)
assert counts(states) == "24 done", notes
assert len(nodes) == 2 and max(widths) == 4
folders = run_folders(sweep)
assert len(folders) == len(list(sweep.output.glob("*/*/logs"))) == 24
assert [rounds_of(folder) for folder in folders] == [list(range(7))] * 24
Path("digests").write_text(f"{digest(states[0])} {digest(states[-1])}")
"""


@pytest.mark.ray
@pytest.mark.large
def test_two_of_four_nodes_die(workplace: Path, monkeypatch: pytest.MonkeyPatch, tracking_store: str) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a token in the home folder would not be that of this cluster
    command = [sys.executable, "-c", DYING]
    ended = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    alone = [
        run(parse_scenario(digits(training={"batch_size": 64}, rounds=6, algorithm={"name": name}), [f"seed={seed}"]))
        for name, seed in (("fedgh", 1), ("standalone", 12))
    ]
    # Not from standard output, to which Ray also writes.
    assert Path("digests").read_text().split() == [one.state_digest for one in alone]


@pytest.mark.parametrize(
    ("limit", "expected", "nodes", "share"),
    [
        (None, None, [Node("a", 8.0, 2.0)], 0.25),
        (2, None, [Node("a", 8.0, 2.0)], 1.0),
        (3, None, [Node("a", 8.0, 2.0)], 0.5),  # 2/3 fits once on a GPU
        (None, None, [Node("a", 8.0, 2.0), Node("b", 8.0, 1.0)], 0.125),
        (None, None, [Node("head", 0.0, 0.0), Node("a", 4.0, 1.0)], 0.25),  # no worker runs on a head node without CPUs
        (None, None, [Node("a", 8.0, 2.0), Node("b", 8.0, 0.0)], 0.0),
        (None, None, [], 0.0),
        (None, 3, [Node("a", 16.0, 4.0)], 1.0),  # 3 cells: a GPU each, since Ray puts shares of 1/4 on one GPU
    ],
)
def test_tasks_share_the_gpus_of_a_node(
    limit: int | None, expected: int | None, nodes: list[Node], share: float
) -> None:
    assert gpu_share(nodes, limit, expected) == share
