"""The folder that is sent to a cluster: the code and the files of a scenario or sweep, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from raysim.common.installed import installed
from raysim.jobs.submit import stage
from raysim.plugins.own_code import JOB_CODE, OwnCode
from raysim.runs.code import checkout
from raysim.study.definition import files_of, load_sweep
from tests.conftest import REPOSITORY

QUICKSTART = REPOSITORY / "scenarios" / "quickstart.yaml"


def test_code_and_scenario_and_nothing_else(tmp_path: Path) -> None:
    assert stage([QUICKSTART], tmp_path, OwnCode()) == ["quickstart.yaml"]
    top = {path.name for path in tmp_path.iterdir()}
    assert top == {"raysim", "quickstart.yaml", f"raysim-{installed('raysim')}.dist-info", JOB_CODE}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if "__pycache__" in path.parts]
    assert sum(path.stat().st_size for path in files) < 5_000_000


def test_a_sweep_with_what_it_needs(tmp_path: Path) -> None:
    claim = {"file": "../../values.csv", "rows": {"paper": "X"}, "measures": {"acc": "last"}}
    base = {"base": "../base.yaml", "runs": {"method": {"Ours": []}}, "published": [claim]}
    (tmp_path / "here" / "a" / "b").mkdir(parents=True)
    (tmp_path / "here" / "a" / "b" / "sweep.yaml").write_text(json.dumps(base))
    (tmp_path / "here" / "a" / "base.yaml").write_text(QUICKSTART.read_text())
    (tmp_path / "here" / "values.csv").write_text("paper,method,metric,value\nX,Ours,acc,0.5\n")
    (tmp_path / "here" / "a" / "other.yaml").write_text("rounds: 3")
    files = files_of(tmp_path / "here" / "a" / "b" / "sweep.yaml")
    assert stage(files, tmp_path / "there", OwnCode())[0] == "a/b/sweep.yaml"
    shipped = {path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*.[yc]*")}
    assert {name for name in shipped if not name.startswith("raysim/")} == {
        "a/b/sweep.yaml",
        "a/base.yaml",
        "values.csv",
    }
    assert files_of(tmp_path / "here" / "a" / "base.yaml") == []
    there, here = load_sweep(tmp_path / "there" / "a/b/sweep.yaml"), load_sweep(files[0])
    assert [cell.id for cell in there.cells] == [cell.id for cell in here.cells]


def test_it_stands_alone(tmp_path: Path) -> None:
    """In a Python that knows of no other raysim, what was staged is found, with its version and requirements."""
    stage([QUICKSTART], tmp_path, OwnCode())
    program = (
        "import sys, importlib.metadata as m, raysim.jobs.entry as v, raysim.algorithms; "
        "print(v.__file__, raysim.algorithms.__file__, m.version('raysim'), len(m.requires('raysim')), end=' '); "
        "from raysim.runs.code import checkout; print(*checkout())"
    )
    others = "import sys; sys.meta_path = [f for f in sys.meta_path if 'Editable' not in repr(f)]"
    command = [sys.executable, "-c", f"{others}; {program}"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert [Path(name).is_relative_to(tmp_path) for name in output[:2]] == [True, True]
    assert output[2] == installed("raysim")
    assert int(output[3]) > 10
    assert output[4:] == [str(fact) for fact in checkout()]  # of the checkout that it comes from
