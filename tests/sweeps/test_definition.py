"""Sweep files become cells, or are refused in one sentence before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import raysim
from raysim.common.errors import ScenarioError
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import placed
from raysim.sweeps.definition import files_of, load_sweep
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


def test_the_base_may_be_a_bundled_scenario(tmp_path: Path) -> None:
    assert load_sweep(write(tmp_path, base="quickstart", seeds=[1])).cells[0].scenario.name == "quickstart"


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


def test_a_sweep_of_a_scenario_has_its_name_and_its_comment_once(base: Path) -> None:
    base.write_text(f"# What it is.\n{base.read_text()}")
    sweep = load_sweep(base, seeds=[1])
    name = raysim.Scenario.load(base).name
    assert name != base.stem
    assert sweep.name == sweep.output.name == f"{name}-sweep"
    assert sweep.about == "What it is."


def test_a_sweep_of_a_scenario_lies_beside_its_single_runs(base: Path, tmp_path: Path) -> None:
    """Both folders have the scenario's name, whatever its file is called, and `--set` changes both."""
    file = base.rename(tmp_path / "my scenario.yaml")
    for name, sets in (("tiny", []), ("other", ["name=other"])):
        single = raysim.Scenario.load(file, sets).results_folder()
        sweep = load_sweep(file, seeds="1,2", sets=sets)
        assert single == tmp_path / "runs" / name
        assert sweep.output == single.with_name(f"{name}-sweep") and sweep.name == f"{name}-sweep"
        for cell in sweep.cells:
            assert placed(cell, sweep).results_folder() == sweep.output / cell.folder_name


def test_an_inline_base(tmp_path: Path) -> None:
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


def test_published_values_of_several_entries_and_values_that_were_not_printed(base: Path, tmp_path: Path) -> None:
    (tmp_path / "values.csv").write_text(VALUES.replace("512", "-"))
    other = claim(rows={"paper": "Y"}, measures={"acc_%": "best"})
    (cell,) = load_sweep(write(tmp_path, runs={"method": {"Ours": []}}, published=[claim(), other])).cells
    assert [(one.measure, one.value) for one in cell.published] == [
        ("last", 0.935),
        ("up_mib", None),
        (None, None),
        ("best", 0.11),
    ]


def test_an_override_with_braces_needs_quotes(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}runs:\n  Mine: [algorithm={{name: fedgh}}]\n")
    with pytest.raises(ScenarioError, match=r"not valid YAML: .*; put quotes around an override that contains braces$"):
        load_sweep(path)


def test_what_is_said_of_a_sweep_is_what_opens_its_file(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path, seeds=[1])
    path.write_text(f"# A table.\n{path.read_text()}")
    assert load_sweep(path).card().about == "A table."


@pytest.mark.parametrize(
    ("content", "key", "word"),
    [
        ({"grdi": {}}, "grdi", "did you mean 'grid'"),
        ({"grid": {"training.lr": []}}, "grid.training.lr", "at least 1"),
        ({"grid": [1]}, "grid", "mapping"),
        ({"set": ["training.lx=1"]}, "training.lx", "the sweep"),
        ({"runs": {"a": ["training.lx=1"]}}, "training.lx", "the cell 'a'"),
        ({"seeds": [-1]}, "seed", "at least 0"),
        ({"grid": {"training.lr": [0.1, 0.1]}}, "", "the same run"),
        ({"grid": {"algorithm.name": ["fedhg"]}}, "algorithm.name", "did you mean"),
        ({"grid": {"data.partition.name": ["iid", "idd"]}}, "data.partition.name", "did you mean"),
        ({"seeds": "1...3"}, "seeds", "1..5"),
        ({"seeds": "3..1"}, "seeds", "1..5"),
        ({"runs": {"a": "training.lr=1"}}, "runs.a", "a list"),
        ({"base": "missing.yaml"}, "missing.yaml", "no such file"),
        ({"base": "other.yaml"}, "other.yaml", "is a sweep"),
        ({"name": "a/b"}, "name", "letters"),
        ({"targets": [0.5, 2]}, "targets", "at most 1"),
        ({"targets_on": "participant"}, "targets_on", "participants"),
        ({"baseline": "standalon"}, "baseline", "fedgh"),
        ({"published": {}}, "published", "missing"),
        ({"published": claim(file="no.csv")}, "published.file", "metric and value"),
        ({"published": claim(rows={"paper": "Z"})}, "published.rows", "no row"),
        ({"published": claim(rows={"papr": "X"})}, "published.rows", "no row"),
        ({"published": claim(measures={"acc_%": "lst"})}, "published.measures.acc_%", "last"),
        ({"published": claim(measures={"acc": "last"})}, "published.measures.acc", "acc_%"),
        ({"published": claim(measures={"size": "last"})}, "published", "give a number"),
        ({"published": claim(rows={"paper": "*"})}, "published", "more than one"),
        ({"runs": {"a": {"grid": {"rounds": 3}}}}, "runs.a.grid.rounds", "a list"),
    ],
)  # fmt: skip
def test_bad_sweep_files(base: Path, tmp_path: Path, content: dict[str, Any], key: str, word: str) -> None:
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"base": "sweep.yaml", "seeds": [1]}))
    (tmp_path / "values.csv").write_text(VALUES)
    path = write(tmp_path, **{"runs": {"method": {"Ours": []}} if "published" in content else {}, **content})
    with pytest.raises(ScenarioError) as caught:
        load_sweep(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and key in text and word in text and "\n" not in text
    assert not (tmp_path / "runs").exists()


def test_a_sweep_without_a_base(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("seeds: [1]\n")
    with pytest.raises(ScenarioError, match="base: is missing"):
        load_sweep(path)


SWEEPS = sorted((REPOSITORY / "scenarios" / "sweeps").glob("*.yaml"), key=lambda path: path.stem == "digits_tuned")


@pytest.mark.parametrize("path", first(SWEEPS, len(SWEEPS) - 1), ids=[path.stem for path in SWEEPS])
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
    assert load_sweep(write(tmp_path, grid=grid, baseline="./my_file.py")).baseline == "./my_file.py"


def test_a_baseline_may_be_a_name_in_runs(base: Path, tmp_path: Path) -> None:
    runs = {"rate": {"slow": ["training.lr=0.1"], "fast": ["training.lr=0.2"]}, "m": {"a": [], "b": ["rounds=2"]}}
    for baseline in ("slow", "slow a", "fedgh"):
        sweep = load_sweep(write(tmp_path, runs=runs, baseline=baseline))
        assert sweep.baseline == baseline
        assert list(sweep.card().cells.values())[1].runs == ("slow", "b")
    with pytest.raises(ScenarioError, match=r"baseline: 'slw' given; did you mean 'slow'"):
        load_sweep(write(tmp_path, runs=runs, baseline="slw"))


def test_seeds_and_grids_of_options_are_not_in_the_file(base: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^--seeds: 'x' given"):
        load_sweep(base, seeds="x")
    with pytest.raises(ScenarioError, match=r"^--grid: grid\.training\.lr"):
        load_sweep(base, grid={"training.lr": []})


def test_a_scenario_with_the_section_seeds_is_no_sweep(base: Path) -> None:
    base.write_text(yaml.safe_dump(yaml.safe_load(base.read_text()) | {"seeds": {"data": 7}}))
    assert files_of(base) == []
    sweep = load_sweep(base, seeds="1,2")
    assert [(cell.scenario.seed, cell.scenario.seeds.data) for cell in sweep.cells] == [(1, 7), (2, 7)]
