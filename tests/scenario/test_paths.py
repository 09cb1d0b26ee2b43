"""Paths in a file are relative to the file, those of `--set` and of Python to the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import raysim
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.study.cells import placed
from raysim.study.definition import load_sweep
from tests.data.own import scenario, table
from tests.engine.scenarios import digits

KEYS: dict[str, Any] = {
    "data.path": ["../data/train.csv", "../data/test.csv"],
    "data.root": "../data",
    "data.partition": {"name": "listed", "path": "listed.parquet"},
    "system.trace": "trace.csv",
    "output": "results",
    "checkpoint.folder": "saved",
    "tracking.uri": "sqlite:///mlflow.db",
}


@pytest.fixture
def conf(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project with scenarios, whose data is in another one; the current folder is outside of both."""
    for name in ("project/conf", "elsewhere"):
        (workplace / name).mkdir(parents=True)
    table(workplace / "project" / "data" / "har.csv")
    monkeypatch.chdir(workplace / "elsewhere")
    return workplace / "project" / "conf"


def write(file: Path, content: Any) -> Path:
    file.write_text(yaml.safe_dump(content))
    return file


def har(path: str, **changes: Any) -> dict[str, Any]:
    data = {"name": "csv", "path": path, "partition": {"name": "natural", "by": "user"}}
    return scenario(data, **{"resources": {"gpus_per_actor": 0}, **changes})


def with_keys() -> dict[str, Any]:
    content = digits()
    for key, value in KEYS.items():
        section, _, name = key.rpartition(".")
        (content.setdefault(section, {}) if section else content)[name] = value
    return content


def paths_of(parsed: ParsedScenario) -> list[Any]:
    assert parsed.system is not None
    where = parsed.data.path, parsed.data.root, parsed.data.partition.path, parsed.system.trace
    return [*where, str(parsed.output_folder), parsed.checkpoint.folder, parsed.tracking.uri]


def expected(conf: Path) -> list[Any]:
    data = conf.parent / "data"
    names = [str(conf / name) for name in ("listed.parquet", "trace.csv", "results", "saved")]
    return [[str(data / "train.csv"), str(data / "test.csv")], str(data), *names, f"sqlite:///{conf}/mlflow.db"]


def test_a_run_from_anywhere(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results are in ./runs, and its own folder says where its data is."""
    file = write(conf / "har.yaml", har("../data/har.csv"))
    first = raysim.run("../project/conf/har.yaml", quiet=True)
    assert first.folder.parent.parent == Path.cwd() / "runs"
    monkeypatch.chdir(conf)
    assert raysim.run(file.name, quiet=True).state_digest == first.state_digest
    monkeypatch.chdir(conf.parent)
    again = raysim.run(first.folder / "resolved.yaml", quiet=True)
    assert (again.state_digest, again.folder.parent.parent) == (first.state_digest, conf.parent / "runs")
    assert first.resume(["rounds=3"], quiet=True).summary["rounds"] == 3


def test_every_key(conf: Path) -> None:
    file = write(conf / "all.yaml", with_keys())
    assert paths_of(parse_scenario(file)) == expected(conf)
    here = Path.cwd()
    sets = [f"{key}={yaml.safe_dump(value, default_flow_style=True).strip()}" for key, value in KEYS.items()]
    by_sets = parse_scenario(write(conf / "none.yaml", digits()), [item.removesuffix("\n...") for item in sets])
    assert paths_of(by_sets) == paths_of(parse_scenario(with_keys())) == expected(here)
    assert by_sets.overrides["data.root"] == "../data"  # runs are called by it


def test_addresses_and_homes_stay(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    content = digits(checkpoint={"folder": "s3://bucket/runs"}, tracking={"uri": "http://host:5000"}, output="~/runs")
    loaded = raysim.Scenario.load(write(conf / "s.yaml", content))
    assert (loaded.checkpoint.folder, loaded.tracking.uri) == ("s3://bucket/runs", "http://host:5000")
    assert loaded.output_folder == Path("/home/me/runs")


def test_a_run_to_begin_with(conf: Path) -> None:
    """Its folder is relative to the file; an id is that of a run below ./runs."""
    first = raysim.run(digits(rounds=1, output=str(conf / "results")), quiet=True)
    folder = first.folder.relative_to(conf)
    second = raysim.run(write(conf / "s.yaml", digits(rounds=1, init={"run": str(folder)})), quiet=True)
    assert second.scenario.init is not None and second.scenario.init.run == str(first.folder)
    by_id = digits(rounds=1, init={"run": second.folder.name})
    assert raysim.run(write(conf / "s.yaml", by_id), quiet=True).status == "finished"


def test_a_sweep_has_paths_of_three_places(conf: Path) -> None:
    """Those of its base, its own, and those of options."""
    write(conf / "har.yaml", har("../data/har.csv", output="results"))
    studies = conf.parent / "studies"
    studies.mkdir()
    runs = {"a": ["algorithm.name=fedgh"], "b": ["data.path=more.csv"]}
    write(studies / "sweep.yaml", {"base": "../conf/har.yaml", "runs": runs})
    sweep = load_sweep(studies / "sweep.yaml")
    assert sweep.output == conf / "results" / "sweep"
    data = [placed(cell, sweep).data.path for cell in sweep.cells]
    assert data == [str(conf.parent / "data" / "har.csv"), str(studies / "more.csv")]
    by_option = load_sweep(conf / "har.yaml", grid={"data.path": ["here.csv"]}, sets=["output=mine"])
    assert by_option.output == Path.cwd() / "mine" / "own-sweep"
    assert by_option.cells[0].scenario.data.path == str(Path.cwd() / "here.csv")
    write(studies / "sweep.yaml", {"base": har("more.csv")})
    assert load_sweep(studies / "sweep.yaml").cells[0].scenario.data.path == str(studies / "more.csv")
