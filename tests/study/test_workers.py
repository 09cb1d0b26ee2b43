"""Cells go back into the queue when their workers die, and run folders come from nodes with disks of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.common.files import hold
from raysim.common.results import LOCK
from raysim.engine.policies.placement import Node
from raysim.engine.ray.tasks import gpu_share
from raysim.results.load import read_rounds
from raysim.runs.run import run
from raysim.scenario.parse import parse_scenario
from raysim.study.cells import Sweep, counts
from raysim.study.loop import run_sweep
from tests.conftest import REPOSITORY, said
from tests.engine.scenarios import plain_digits as digits
from tests.study.conftest import Pool
from tests.study.test_loop import digest, run_folders, sweep_of


@pytest.fixture
def sweep(workplace: Path) -> Sweep:
    return sweep_of(workplace, "rounds=4", "checkpoint.every=1")


def rounds_of(folder: Path) -> list[int]:
    return list(read_rounds(folder)["round"].to_pylist())


def test_a_lost_cell_is_resumed_and_no_round_is_recorded_twice(sweep: Sweep, pool: Pool) -> None:
    pool.lost = {"fedgh": [-1, 2], "standalone": [4]}
    states = run_sweep(sweep)
    assert counts(states) == "2 done"
    assert [rounds_of(folder) for folder in run_folders(sweep)] == [[0, 1, 2, 3, 4]] * 2
    alone = run(parse_scenario(digits(training={"batch_size": 64}, rounds=4)), quiet=True)
    assert digest(states[0]) == alone.state_digest


def test_a_cell_whose_process_dies_too_often_runs_with_the_next_command(sweep: Sweep, pool: Pool) -> None:
    pool.lost, pool.dead = {"fedgh": [1]}, True
    fedgh, standalone = run_sweep(sweep)
    assert (fedgh.state, fedgh.reason) == ("interrupted", "its node died")
    assert standalone.state == "waiting"
    pool.lost, pool.dead = {}, False
    assert counts(run_sweep(sweep)) == "2 done"


def test_a_run_that_a_lost_process_still_holds_is_not_begun_twice(
    sweep: Sweep, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process on a node that lost its network: the cell waits for its end, for a limited time."""
    monkeypatch.setattr("raysim.study.workers.LOCKED_S", 0.0)
    pool.lost, pool.when_dead = {"fedgh": [1]}, lambda: hold(run_folders(sweep)[0] / LOCK)
    fedgh, standalone = run_sweep(sweep)
    assert standalone.state == "done"
    assert fedgh.rounds == 1 and len(list(sweep.output.glob("fedgh-*/*/run.json"))) == 1
    assert "is still running" in fedgh.reason


def test_checkpoints_that_are_lost_with_a_node(sweep: Sweep, pool: Pool) -> None:
    """Then the cell begins again."""
    pool.lost, pool.when_dead = {"fedgh": [2]}, lambda: shutil.rmtree(run_folders(sweep)[0] / "checkpoints")
    assert counts(run_sweep(sweep)) == "2 done"


def test_a_node_with_a_disk_of_its_own(sweep: Sweep, pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """Its runs are sent, and a run to resume, such as a trial of a tuning, is sent there with its checkpoints."""
    pool.several_nodes = True
    states = run_sweep(replace(sweep, cells=(replace(sweep.cells[0], until=2), sweep.cells[1])))
    assert [(one.state, one.rounds) for one in states] == [("done", 2), ("done", 4)]
    assert "MLFLOW_TRACKING_URI" in said(caplog)[0]
    states = run_sweep(sweep)
    assert [bool(task.files) for task in pool.given] == [False, False, True]
    assert counts(states) == "2 done" and len(run_folders(sweep)) == 2
    assert rounds_of(run_folders(sweep)[0]) == [0, 1, 2, 3, 4]
    alone = run(parse_scenario(digits(training={"batch_size": 64}, rounds=4)), quiet=True)
    assert digest(states[0]) == alone.state_digest


def test_a_task_means_the_same_in_any_folder(workplace: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    sets = ["data.root=~/data", "checkpoint.folder=saved", "tracking.tags={who: me}", "rounds=1"]
    run_sweep(sweep_of(workplace, *sets, grid={}))
    scenario = pool.given[0].cell.scenario
    assert (scenario.data.root, scenario.checkpoint.folder) == ("/home/me/data", str(workplace / "saved"))
    assert (scenario.backend, scenario.tracking.experiment) == ("in_process", "sweep")
    assert scenario.tracking.tags == {"who": "me", "sweep": "sweep", "cell": "base"}


DYING = """
import os
from pathlib import Path
from ray.cluster_utils import Cluster
from raysim.common.logs import show_logs
from raysim.study.loop import run_sweep
from raysim.study.cells import counts
from tests.study.test_loop import digest, run_folders, sweep_of
from tests.study.test_workers import rounds_of

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

with show_logs(notes.append, "raysim.study"):
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
        (3, None, [Node("a", 8.0, 2.0)], 0.5),  # 2/3 fits once on a GPU
        (None, None, [Node("head", 0.0, 0.0), Node("a", 4.0, 1.0)], 0.25),  # no worker runs on a head node without CPUs
        (None, None, [], 0.0),
        (None, 3, [Node("a", 16.0, 4.0)], 1.0),  # 3 cells: a GPU each, since Ray puts shares of 1/4 on one GPU
    ],
)
def test_tasks_share_the_gpus_of_a_node(
    limit: int | None, expected: int | None, nodes: list[Node], share: float
) -> None:
    assert gpu_share(nodes, limit, expected) == share
