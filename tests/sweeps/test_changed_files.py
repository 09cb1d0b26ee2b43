"""The same command after a file that its cells read was changed: old results are kept, but not counted as done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import raysim
from raysim.comparison.compare import compare
from raysim.sweeps.cells import counts, states_of
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.loop import run_sweep
from tests.sweeps.test_tuning import Pool, pool

__all__ = ["pool"]  # the fixture

LOADER = """
import numpy as np

def load():
    x = np.load("x.npy")
    return {"x": x, "y": np.arange(len(x)) % 2}
"""


def data(path: str, shift: float) -> None:
    """Write 60 samples of two classes."""
    rng = np.random.default_rng(0)
    pd.DataFrame({"a": rng.random(60) + shift, "b": rng.random(60), "label": np.arange(60) % 2}).to_parquet(path)


def parts(path: str, last: int) -> None:
    """Write a partition of the samples to two clients."""
    of = [*([0] * 30), *([1] * 29), last]
    part = ["train", "test", "val"] * 20
    pd.DataFrame({"sample": range(60), "client": of, "part": part}).to_parquet(path)


def trace(path: str, speed: float) -> None:
    pd.DataFrame({"client": [0, 1], "latency_s": [1.0, speed]}).to_csv(path, index=False)


CHANGES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "data": (data, "mine.parquet", {}),
    "loaded": (lambda path, value: np.save(path, np.full((60, 2), value, np.float32)), "x.npy", {
        "data": {"name": "./load.py:load", "partition": {"name": "iid"}},
    }),
    "partition": (parts, "parts.parquet", {
        "data": {"name": "parquet", "path": "mine.parquet", "partition": {"name": "listed", "path": "parts.parquet"}},
    }),
    "trace": (trace, "trace.csv", {"system": {"trace": "trace.csv"}}),
    "inputs": (lambda path, value: Path(path).write_text(str(value)), "weights.pt", {"inputs": ["weights.pt"]}),
    "folder": (lambda path, value: Path(path).write_text(str(value)), "w/x.pt", {"inputs": ["w"]}),
}  # fmt: skip


def scenario(**more: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "rounds": 1,
        "backend": "in_process",
        "algorithm": {"name": "fedavg"},
        "data": {"name": "parquet", "path": "mine.parquet", "partition": {"name": "iid"}},
        "clients": {"count": 2, "models": ["mlp_s"]},
        "training": {"batch_size": 8},
        **more,
    }


def write(folder: Path, base: dict[str, Any], **more: Any) -> Path:
    (folder / "w").mkdir(exist_ok=True)
    (folder / "load.py").write_text(LOADER)
    data("mine.parquet", 0.0)
    content = {"base": base, "grid": {"algorithm.name": ["fedavg", "standalone"]}, **more}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    return folder / "sweep.yaml"


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_file_makes_new_runs_and_keeps_the_old_ones(pool: Pool, workplace: Path, kind: str) -> None:
    change, name, keys = CHANGES[kind]
    path = write(workplace, scenario(**keys))
    change(name, 0)
    study = raysim.Study(path).run(quiet=True)
    old = [*study.cells["folder"]]
    content = Path(name).read_bytes()
    Path(name).unlink()
    # Without its trace, a cell cannot be loaded; a folder without one of its files has changed.
    if kind not in ("trace", "folder"):
        assert study.cells["state"].tolist() == ["done", "done"]  # a machine without the files
    Path(name).write_bytes(content)
    assert study.run(quiet=True).cells["folder"].tolist() == old and pool.tasks == 2  # written again, but equal
    change(name, 1)
    assert study.cells["state"].tolist() == ["waiting", "waiting"]
    changed = {"data": "the data", "loaded": "the data", "folder": f"{workplace}/w"}.get(kind, f"{workplace}/{name}")
    assert {reason.partition(" changed")[0] for reason in study.cells["reason"]} == {changed}
    study.run(quiet=True)
    new = [*study.cells["folder"]]
    assert not {*old} & {*new} and all(run.exists() for run in old)
    with pytest.raises(raysim.ScenarioError, match=r"digest|changed|SHA-256"):
        raysim.Run(old[0]).resume(["rounds=2"], quiet=True)


def test_a_cell_that_is_left_out_is_not_compared_with_other_data(pool: Pool, workplace: Path) -> None:
    path = write(workplace, scenario())
    run_sweep(load_sweep(path))
    data("mine.parquet", 1.0)
    time.sleep(1)  # the names of run folders, by which they are ordered, have seconds
    states = run_sweep(load_sweep(path), only=["fedavg"])
    assert counts(states) == "1 done, 1 waiting"
    comparison = compare(workplace / "runs" / "sweep")
    (counted,) = comparison.variants[0].counted.values()
    assert comparison.variants[0].name == "fedavg" and counted.folder == states[0].folder
    assert any("unequal data" in note for note in comparison.notes)
    table = (workplace / "runs" / "sweep" / "comparison" / "comparison.csv").read_text()
    assert "fedavg" in table and "standalone" not in table


def test_data_that_changes_while_a_sweep_runs_is_in_no_table_with_the_old(pool: Pool, workplace: Path) -> None:
    def show(progress: object) -> None:
        if pool.tasks == 1:
            data("mine.parquet", 1.0)

    states = run_sweep(load_sweep(write(workplace, scenario())), show=show)
    assert [one.state for one in states] == ["waiting", "done"]
    assert [one.state for one in run_sweep(load_sweep(workplace / "sweep.yaml"))] == ["done", "done"]


def test_trials_on_changed_data_run_again(pool: Pool, workplace: Path) -> None:
    tune = {"seeds": [7], "search": "grid", "space": {"training.lr": [0.1, 0.2]}}
    path = write(workplace, scenario(), seeds=[1], tune=tune, grid={"algorithm.name": ["fedavg"]})
    assert counts(run_sweep(load_sweep(path))) == "1 done"
    tasks = pool.tasks
    data("mine.parquet", 1.0)
    assert counts(run_sweep(load_sweep(path))) == "1 done"
    assert pool.tasks == 2 * tasks


def test_missing_inputs_are_refused(workplace: Path) -> None:
    data("mine.parquet", 0.0)
    with pytest.raises(raysim.ScenarioError, match=r"inputs: .*missing\.pt given"):
        raysim.Scenario.load(scenario(inputs=["missing.pt"]))
    assert counts(states_of(load_sweep(write(workplace, scenario(inputs=["missing.pt"]))))) == "2 waiting"
