"""Sweep files become cells, or are refused in one sentence before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import raysim
from raysim.common.errors import ScenarioError
from raysim.scenario.scenario import Scenario
from raysim.study.cells import placed
from raysim.study.definition import files_of, load_sweep
from tests.choices import first
from tests.conftest import REPOSITORY
from tests.engine.scenarios import digits


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(digits(output=str(tmp_path / "runs"))))
    return path


def write(folder: Path, **content: Any) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": "base.yaml", **content}, sort_keys=False))
    return path


def test_a_grid_is_a_product(base: Path, tmp_path: Path) -> None:
    grid = {"algorithm.name": ["fedgh", "standalone"], "training.lr": [0.1, 0.01]}
    sweep = load_sweep(write(tmp_path, name="both", seeds="1..2", grid=grid, set=["rounds=2"]))
    assert [cell.name for cell in sweep.cells] == [
        f"{method} training.lr={lr} seed={seed}"
        for method in ("fedgh", "standalone") for lr in ("0.1", "0.01") for seed in (1, 2)
    ]  # fmt: skip
    scenario = sweep.cells[2].scenario
    assert (scenario.seed, scenario.training.lr, scenario.rounds) == (1, 0.01, 2)
    assert sweep.output == tmp_path / "runs" / "both"


def test_runs_are_named_lists_of_overrides(base: Path, tmp_path: Path) -> None:
    runs = {"slow": ["training.lr=0.001"], "more data": ["data.partition.classes_per_client=5"]}
    sweep = load_sweep(write(tmp_path, runs=runs, seeds=[3]))
    assert [cell.name for cell in sweep.cells] == ["slow seed=3", "more data seed=3"]
    assert sweep.name == "sweep"


def test_runs_may_have_grids_of_their_own(base: Path, tmp_path: Path) -> None:
    of_fedgh = {"set": ["algorithm.name=fedgh"], "grid": {"algorithm.header_lr": [0.1, 0.2]}}
    alone = ["algorithm.name=standalone"]
    sweep = load_sweep(write(tmp_path, runs={"a": of_fedgh, "b": alone}, grid={"training.lr": [1, 2]}, baseline="b"))
    assert [cell.name for cell in sweep.cells] == [
        *(f"a algorithm.header_lr={header} training.lr={lr}" for header in (0.1, 0.2) for lr in (1, 2)),
        "b training.lr=1",
        "b training.lr=2",
    ]
    assert {cell.runs for cell in sweep.cells} == {("a",), ("b",)}
    rates = {"grid": {"training.lr": [0.1, 0.2]}}
    only = load_sweep(write(tmp_path, runs={"a": rates, "b": {"grid": {"training.lr": [0.3]}}}))
    assert [cell.name for cell in only.cells] == ["a training.lr=0.1", "a training.lr=0.2", "b training.lr=0.3"]
    axes = {"method": {"a": of_fedgh, "b": alone}, "length": {"short": ["rounds=1"], "long": ["rounds=2"]}}
    assert [cell.label for cell in load_sweep(write(tmp_path, runs=axes)).cells] == [
        *(f"a {length} algorithm.header_lr={header}" for length in ("short", "long") for header in (0.1, 0.2)),
        "b short",
        "b long",
    ]


def test_a_scenario_and_a_grid_are_a_sweep(base: Path) -> None:
    models = [["digits_mlp64"], ["digits_mlp64", "digits_mlp128"]]
    sweep = load_sweep(base, grid={"clients.models": models}, seeds="1,2", sets=["rounds=1"])
    assert len(sweep.cells) == 4
    assert sweep.cells[2].scenario.clients.models == models[1]


def test_a_sweep_of_a_scenario_lies_beside_its_single_runs(base: Path, tmp_path: Path) -> None:
    """Both folders have the scenario's name, whatever its file is called, and `--set` changes both."""
    base.write_text(f"# What it is.\n{base.read_text()}")
    file = base.rename(tmp_path / "my scenario.yaml")
    for name, sets in (("tiny", []), ("other", ["name=other"])):
        single = raysim.Scenario.load(file, sets).results_folder()
        sweep = load_sweep(file, seeds="1,2", sets=sets)
        assert single == tmp_path / "runs" / name
        assert sweep.output == single.with_name(f"{name}-sweep") and sweep.name == f"{name}-sweep"
        assert sweep.facts.about == sweep.card().about == "What it is."
        for cell in sweep.cells:
            assert placed(cell, sweep).results_folder() == sweep.output / cell.folder_name


def test_a_base_may_be_inline_or_bundled(tmp_path: Path) -> None:
    assert load_sweep(write(tmp_path, base="quickstart", seeds=[1])).cells[0].scenario.name == "quickstart"
    sweep = load_sweep(write(tmp_path, base=digits(), grid={"seed": [1, 2]}))
    assert [cell.scenario.seed for cell in sweep.cells] == [1, 2]


def test_a_cell_is_known_by_what_decides_its_result(base: Path, tmp_path: Path) -> None:
    (cell,) = load_sweep(write(tmp_path)).cells
    (elsewhere,) = load_sweep(write(tmp_path), sets=["resources.actors=3", "tracking.uri=sqlite:///x.db"]).cells
    (spelt_out,) = load_sweep(write(tmp_path), sets=["training.weight_decay=0.0"]).cells
    (other,) = load_sweep(write(tmp_path), sets=["training.weight_decay=0.1"]).cells
    assert cell.id == elsewhere.id == spelt_out.id != other.id
    sweep = load_sweep(write(tmp_path))
    there = placed(cell, sweep)
    assert (there.name, there.output) == (cell.folder_name, str(sweep.output))
    assert placed(cell, sweep).training == cell.scenario.training


def test_a_grid_that_grows_keeps_its_cells(base: Path, tmp_path: Path) -> None:
    few = load_sweep(write(tmp_path, seeds=[1], grid={"algorithm.name": ["fedgh"]}))
    more = load_sweep(write(tmp_path, seeds=[1, 2], grid={"algorithm.name": ["standalone", "fedgh"]}))
    assert {cell.folder_name for cell in few.cells} < {cell.folder_name for cell in more.cells}


VALUES = """paper,method,metric,value
X,Ours,acc_%,93.5
X,Ours,up_KB,512
X,Theirs,acc_%,80
X,Ours,size,large
Y,Ours,acc_%,11
"""


def claim(**changes: Any) -> dict[str, Any]:
    return {"file": "values.csv", "rows": {"paper": "X"}, "measures": {"acc_%": "last", "up_KB": "up_mib"}, **changes}


def test_runs_with_several_axes_claim_published_values(base: Path, tmp_path: Path) -> None:
    (tmp_path / "values.csv").write_text(VALUES)
    runs = {
        "method": {"Ours": ["algorithm.name=fedgh"], "Theirs": ["algorithm.name=standalone"]},
        "rate": {"slow": ["training.lr=0.1"], "fast": ["training.lr=0.2"]},
    }
    sweep = load_sweep(write(tmp_path, runs=runs, seeds=[1, 2], published=claim()))
    assert [cell.name for cell in sweep.cells] == [
        f"{method} {rate} seed={seed}" for method in ("Ours", "Theirs") for rate in ("slow", "fast") for seed in (1, 2)
    ]
    assert [cell.label for cell in sweep.cells[:3]] == ["Ours slow", "Ours slow", "Ours fast"]
    accuracy, upload, size = sweep.cells[0].published
    assert (accuracy.measure, accuracy.value, accuracy.source) == ("last", pytest.approx(0.935), "X")
    assert (upload.measure, upload.value) == ("up_mib", 0.5) and (size.measure, size.value) == (None, None)
    assert [one.value for one in sweep.cells[-1].published] == [0.8]
    (tmp_path / "values.csv").write_text(VALUES.replace("512", "-"))  # a value that was not printed
    several = [claim(), claim(rows={"paper": "Y"}, measures={"acc_%": "best"})]
    (cell,) = load_sweep(write(tmp_path, runs={"method": {"Ours": []}}, published=several)).cells
    found = [(one.measure, one.value) for one in cell.published]
    assert found == [("last", 0.935), ("up_mib", None), (None, None), ("best", 0.11)]


@pytest.mark.parametrize(
    ("content", "key", "word"),
    [
        ({"grdi": {}}, "grdi", "did you mean 'grid'"),
        ({"set": ["training.lx=1"]}, "training.lx", "the sweep"),
        ({"runs": {"a": ["training.lx=1"]}}, "training.lx", "the cell 'a'"),
        ({"grid": {"training.lr": [0.1, 0.1]}}, "", "the same run"),
        ({"grid": {"algorithm.name": ["fedhg"]}}, "algorithm.name", "did you mean"),
        ({"seeds": "3..1"}, "seeds", "1..5"),
        ({"base": "missing.yaml"}, "missing.yaml", "no such file"),
        ({"targets": [0.5, 2]}, "targets", "at most 1"),
        ({"baseline": "standalon"}, "baseline", "fedgh"),
        ({"runs": {"a": {"grid": {"rounds": [3]}}}, "grid": {"rounds": [2]}}, "grid.rounds", "the grid of a"),
        ({"published": claim(rows={"paper": "Z"})}, "published.rows", "no row"),
        ({"published": claim(measures={"acc_%": "lst"})}, "published.measures.acc_%", "last"),
    ],
)  # fmt: skip
def test_bad_sweep_files(base: Path, tmp_path: Path, content: dict[str, Any], key: str, word: str) -> None:
    (tmp_path / "values.csv").write_text(VALUES)
    path = write(tmp_path, **{"runs": {"method": {"Ours": []}} if "published" in content else {}, **content})
    with pytest.raises(ScenarioError) as caught:
        load_sweep(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and key in text and word in text and "\n" not in text
    assert not (tmp_path / "runs").exists()


SLOW = {"digits", "digits_more", "digits_tuned"}  # of many methods
SWEEPS = sorted((REPOSITORY / "scenarios" / "sweeps").glob("*.yaml"), key=lambda path: path.stem in SLOW)


@pytest.mark.parametrize("path", first(SWEEPS, len(SWEEPS) - len(SLOW)), ids=[path.stem for path in SWEEPS])
def test_every_shipped_sweep_loads_and_its_cells_fit(path: Path) -> None:
    sweep = load_sweep(path, seeds=[1])
    assert len(sweep.cells) > 1
    for cell in sweep.cells:
        Scenario.of(cell.scenario)


def test_own_methods_are_called_by_their_classes(base: Path, tmp_path: Path) -> None:
    template = (REPOSITORY / "raysim" / "cli" / "templates" / "algorithm.py").read_text()
    (tmp_path / "my_file.py").write_text(template.replace("NewMethod", "Mine"))
    (tmp_path / "twin.py").write_text(template.replace("NewMethod", "Mine"))
    grid = {"algorithm.name": ["./my_file.py", "standalone"]}
    sweep = load_sweep(write(tmp_path, grid=grid, seeds=[1], baseline="Mine"))
    assert [cell.name for cell in sweep.cells] == ["Mine seed=1", "standalone seed=1"]
    assert sweep.cells[0].folder_name.startswith("Mine-seed-1-")
    assert [cell.scenario.method for cell in sweep.cells] == ["Mine", "standalone"]
    with pytest.raises(ScenarioError, match=r"runs: .*'Mine' and 'Mine'"):
        load_sweep(write(tmp_path, grid={"algorithm.name": ["./my_file.py", "./twin.py"]}))
    assert load_sweep(write(tmp_path, grid=grid, baseline="./my_file.py")).facts.baseline == "./my_file.py"


def test_a_baseline_may_be_a_name_in_runs(base: Path, tmp_path: Path) -> None:
    runs = {"rate": {"slow": ["training.lr=0.1"], "fast": ["training.lr=0.2"]}, "m": {"a": [], "b": ["rounds=2"]}}
    for baseline in ("slow", "slow a", "fedgh"):
        sweep = load_sweep(write(tmp_path, runs=runs, baseline=baseline))
        assert sweep.facts.baseline == baseline
        assert list(sweep.card().cells.values())[1].runs == ("slow", "b")
    with pytest.raises(ScenarioError, match=r"baseline: 'slw' given; did you mean 'slow'"):
        load_sweep(write(tmp_path, runs=runs, baseline="slw"))


def test_a_scenario_with_the_section_seeds_is_no_sweep(base: Path) -> None:
    base.write_text(yaml.safe_dump(yaml.safe_load(base.read_text()) | {"seeds": {"data": 7}}))
    assert files_of(base) == []
    sweep = load_sweep(base, seeds="1,2")
    assert [(cell.scenario.seed, cell.scenario.seeds.data) for cell in sweep.cells] == [(1, 7), (2, 7)]
