"""Paths, values and run folders that cannot be used: one sentence and exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import raysim
from raysim.common.errors import RunError
from tests.cli.command import run
from tests.conftest import plain_runs
from tests.engine.scenarios import digits


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["init", "/proc/x"], "/proc/x: no such file or directory; give another file or folder"),
        (["schema", "-o", "/proc/x"], "/proc/x: no such file or directory; give another file or folder"),
        (["sweep", "texts.yaml", "--dry-run"], "unknown algorithm '['"),
        (["sweep", "base.yaml", "--seeds", "\u00b2"], "give a list of integers, or a range such as 1..5"),
    ],
)
def test_bad_values(words: list[str], sentence: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["[", "*x", "a: b: c"]
    (workplace / "base.yaml").write_text(yaml.safe_dump(digits()))
    (workplace / "texts.yaml").write_text(json.dumps({"base": "base.yaml", "grid": {"algorithm.name": texts}}))
    code, _, err = run(capfd, *words)
    assert code == 2, err
    assert sentence in err and err.count("\n") == 1 and len(err) < 900


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verify", "base.yaml", "--actors", "\u00b2"], "'\u00b2' given; give positive whole numbers"),
        (["new", "algorithm", "class"], "class"),
        (["new", "algorithm", "server"], "server"),
        (["new", "algorithm", "a-b"], "letters"),
        (["new", "model", "json"], "json"),
    ],
)
def test_bad_options(words: list[str], sentence: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workplace / "base.yaml").write_text(yaml.safe_dump(digits()))
    code, _, err = run(capfd, *words)
    assert code == 2 and sentence in err, err
    assert [path.name for path in workplace.iterdir()] == ["base.yaml"]


def test_no_folder_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by `launch`, which joins a Ray that this process has started for other tests.
    from raysim.engine.ray import local_cluster

    monkeypatch.setenv("RAY_TMPDIR", "/nonexistent")
    with pytest.raises(RunError, match=r"/nonexistent/.*RAY_TMPDIR"):
        local_cluster.start()


@pytest.fixture
def copy(workplace: Path, finished: Path) -> Path:
    return Path(shutil.copytree(finished, workplace / "copy"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Path:
    """The folder of a run of two rounds."""
    place = tmp_path_factory.mktemp("finished")
    scenario = {**digits(), "output": str(place), "tracking": {"uri": tracking_store}}
    with pytest.MonkeyPatch.context() as patch:
        plain_runs(patch, tracking_store)
        return raysim.run(scenario, sets=["rounds=2", "backend=in_process"], quiet=True).folder


def change_column(folder: Path, file: str, name: str, value: Any) -> None:
    table = pq.read_table(folder / file)
    values = pa.array([value] * len(table))
    pq.write_table(table.set_column(table.column_names.index(name), name, values), folder / file)


def test_numbers_beyond_floats_are_compared(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_column(copy, "rounds.parquet", "accuracy/jain", 2**60)
    assert run(capfd, "compare", "copy")[0] == 0
