"""The same command after the sweep file, a method or a file of data was changed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import raysim
from raysim.study.cells import counts, states_of
from raysim.study.compare import compare
from raysim.study.definition import load_sweep
from raysim.study.loop import run_sweep
from tests.conftest import REPOSITORY
from tests.study.conftest import Pool
from tests.study.test_loop import sweep_of


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
    "partition": (parts, "parts.parquet", {
        "data": {"name": "parquet", "path": "mine.parquet", "partition": {"name": "listed", "path": "parts.parquet"}},
    }),
    "trace": (trace, "trace.csv", {"system": {"trace": "trace.csv"}}),
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
    data("mine.parquet", 0.0)
    content = {"base": base, "grid": {"algorithm.name": ["fedavg", "standalone"]}, **more}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    return folder / "sweep.yaml"


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_file_makes_new_runs_and_keeps_the_old_ones(pool: Pool, workplace: Path, kind: str) -> None:
    change, name, keys = CHANGES[kind]
    path = write(workplace, scenario(**keys), grid={})
    change(name, 0)
    study = raysim.Study(path).run(quiet=True)
    old = [*study.cells["folder"]]
    content = Path(name).read_bytes()
    Path(name).unlink()
    # Without its trace, a cell cannot be loaded; a folder without one of its files has changed.
    if kind not in ("trace", "folder"):
        assert study.cells["state"].tolist() == ["done"]  # a machine without the files
    Path(name).write_bytes(content)
    assert study.run(quiet=True).cells["folder"].tolist() == old and pool.tasks == 1  # written again, but equal
    change(name, 1)
    assert study.cells["state"].tolist() == ["waiting"]
    changed = {"data": "the data", "folder": f"{workplace}/w"}.get(kind, f"{workplace}/{name}")
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


def test_another_baseline_and_other_targets_are_compared(pool: Pool, workplace: Path) -> None:
    def table() -> str:
        return repr(compare(workplace / "runs" / "sweep"))

    run_sweep(sweep_of(workplace, baseline="standalone", targets=[0.05]))
    assert "vs standalone" in table() and "5%" in table()
    run_sweep(sweep_of(workplace, baseline="fedgh", targets=[0.11]))
    assert "vs fedgh" in table() and "11%" in table()
    assert pool.tasks == 2  # no cell was run again


def test_a_grid_that_grew_runs_its_new_cells(pool: Pool, workplace: Path) -> None:
    folders = [one.folder for one in run_sweep(sweep_of(workplace))]
    more = sweep_of(workplace, grid={"algorithm.name": ["fedgh", "standalone", "fedproto"]})
    assert counts(states_of(more)) == "2 done, 1 waiting"
    states = run_sweep(more)
    assert counts(states) == "3 done" and [one.folder for one in states[:2]] == folders
    assert pool.tasks == 3


def test_a_cell_whose_code_was_edited_meanwhile_waits_and_the_others_run(pool: Pool, workplace: Path) -> None:
    template = (REPOSITORY / "raysim" / "cli" / "templates" / "algorithm.py").read_text().replace("NewMethod", "Mine")
    (workplace / "mine.py").write_text(template)
    sweep = sweep_of(workplace, grid={"algorithm.name": ["./mine.py", "standalone"]})
    (workplace / "mine.py").write_text(f"{template}\n\nEDITED = True\n")
    mine, standalone = run_sweep(sweep)
    assert (mine.state, standalone.state) == ("waiting", "done")
    assert "was edited after the sweep began" in mine.reason
