"""The papers' scenarios: they load, and every published number in their comments is a row of published_results.csv.

In a comment block `# published:` lines belong to the file as it is; those under a `# variant:` or `# ablation:` line
(a `raysim launch` command of the same file) belong to that command.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.core.fields import settings_fields
from raysim.launch.check import Checked, check
from raysim.models.encoders import ENCODERS, weights_file
from raysim.scenario.load import load_scenario
from raysim.scenario.registry import algorithm_class, algorithm_names
from tests.conftest import REPOSITORY

PUBLISHED = REPOSITORY / "scenarios" / "published_results.csv"
SOURCE = REPOSITORY.parent / "shared" / "published_results.csv"
PAPERS = sorted((REPOSITORY / "scenarios" / "papers").glob("*.yaml"))
BASELINES = sorted((REPOSITORY / "scenarios" / "baselines").glob("*.yaml"))
EVERY = [*PAPERS, *BASELINES]

DATASETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "Fashion-MNIST": "fashion_mnist"}
CLASSES_PER_CLIENT = {"cifar10": 2, "cifar100": 10}  # of the pathological split, in all papers
CNNS = ["cnn1", "cnn2", "cnn3", "cnn4", "cnn5"]
RESNETS = ["hks_resnet8", "hks_resnet16", "hks_resnet20"]

PAPER_OF = {"fedssa": "FedSSA", "fedral": "FedRAL", "hks": "HKS", "fedgh": "FedGH", "dc_pfl": "DC-PFL"}

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "Standalone": {"name": "standalone"},
    "Local-T": {"name": "standalone"},
    "FedAvg": {"name": "fedavg"},
    "FML": {"name": "fml"},
    "FedKD": {"name": "fedkd"},
    "FedAPEN": {"name": "fedapen"},
    "FedClassAvg": {"name": "fedclassavg"},
    "FD": {"name": "fd", "leave_one_out": True},
    "FedProto": {"name": "fedproto"},
    "FedTGP": {"name": "fedtgp"},
    **{f"FedCache R={r}": {"name": "fedcache", "neighbours": r} for r in (1, 4, 16, 64, 256)},
    "LG-FedAvg": {"name": "lg_fedavg"},
    "FedSSA": {"name": "fedssa"},
    "FedRAL": {"name": "fedral", "agg": "weighted"},
    "FedRAL Case B (no sparsification + weighted aggregation)": {"name": "fedral", "blocks": 1, "agg": "weighted"},
    "FedRAL Case C (sparsification + naive averaging)": {"name": "fedral", "blocks": 100, "agg": "naive"},
    "HKS top": {"name": "hks", "granularity": "top"},
    "HKS middle": {"name": "hks", "granularity": "middle"},
    "HKS bottom": {"name": "hks", "granularity": "bottom"},
    "HKS all": {"name": "hks", "granularity": "all"},
    "FedGH": {"name": "fedgh", "server_mode": "per_lar", "first": "broadcast"},
    "DC-PFL": {"name": "dc_pfl", "virtual_samples": 1000},
    "DC-PFL w/o AL": {"name": "dc_pfl", "lambda_": 0, "virtual_samples": 1000},
    "DC-PFL w/o GC": {"name": "dc_pfl", "virtual_samples": 0},
    **{f"DC-PFL sum|Gc|={n}": {"name": "dc_pfl", "virtual_samples": n} for n in (600, 800, 1000, 2000, 5000)},
}
"""What a row's method is here: the algorithm and the fields that make it this row."""


@pytest.fixture(autouse=True)
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch hub cache with a file where FedCache's encoder has its weights; nothing here reads it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path_factory.getbasetemp() / "hub"))
    weights_file().parent.mkdir(parents=True, exist_ok=True)
    weights_file().touch()


@dataclass(frozen=True)
class Row:
    """One line of the CSV."""

    paper: str
    table: str
    setting: str
    dataset: str
    method: str
    metric: str
    value: str


@dataclass
class Command:
    """A `raysim launch` line of a comment block, or (kind "file") the file as it is."""

    kind: str
    path: Path
    text: str = ""
    rows: list[Row] = field(default_factory=list)

    @property
    def sets(self) -> list[str]:
        words = shlex.split(self.text)
        if self.kind != "file":
            given = [self.path.relative_to(REPOSITORY).as_posix(), *["--set"] * (len(words[3:]) // 2)]
            assert [*words[2:3], *words[3::2]] == given and words[:2] == ["raysim", "launch"] and len(words) % 2, words
        return words[4::2]

    @property
    def label(self) -> str:
        return " ".join([self.path.stem, *self.sets])

    def checked(self) -> Checked:
        return _checked(self.path, tuple(self.sets))


@cache
def _checked(path: Path, sets: tuple[str, ...]) -> Checked:
    return check(load_scenario(path, sets))


def published() -> list[Row]:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def commands(path: Path) -> list[Command]:
    """The file itself, then the commands of its comment block, each with the published rows that belong to it."""
    found = [Command("file", path)]
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, _, rest = line.removeprefix("# ").partition(": ")
        if not line.startswith("#"):
            break
        if kind == "published":
            found[-1].rows.append(Row(*rest.split(" | ")))
        elif kind in ("variant", "ablation"):
            found.append(Command(kind, path, rest))
    return found


def algorithm_in(path: Path) -> str:
    return str(yaml.safe_load(path.read_text(encoding="utf-8"))["algorithm"]["name"])


ALL = [command for path in EVERY for command in commands(path)]
WITH_SETS = [command for command in ALL if command.kind != "file"]


def of_file(path: Path) -> str:
    return path.stem


def of_command(command: Command) -> str:
    return command.label


def test_the_numbers_are_those_that_were_collected() -> None:
    rows = published()
    assert len(rows) == len(set(rows)) == 631
    assert {row.paper for row in rows} == set(PAPER_OF.values())
    if not SOURCE.is_file():
        pytest.skip(f"the collection itself is not at hand ({SOURCE})")
    assert PUBLISHED.read_bytes().replace(b"\r\n", b"\n") == SOURCE.read_bytes().replace(b"\r\n", b"\n")


def test_there_is_a_scenario_for_every_paper() -> None:
    assert sorted(algorithm_in(path) for path in PAPERS) == sorted(PAPER_OF)


def test_there_is_a_scenario_for_every_baseline() -> None:
    assert sorted(algorithm_in(path) for path in BASELINES) == sorted(set(algorithm_names()) - set(PAPER_OF))


@pytest.mark.parametrize("path", EVERY, ids=of_file)
def test_it_loads_and_fits(path: Path) -> None:
    checked = check(load_scenario(path))
    assert checked.loaded.scenario.name == path.stem
    # What is resolved loads to the same.
    again = load_scenario(yaml.safe_load(checked.loaded.resolved_yaml()))
    assert check(again).loaded.resolved == checked.loaded.resolved


def test_an_encoder_is_named() -> None:
    # The same file is the same run on every machine, whatever weights it has.
    for path in EVERY:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))["algorithm"]
        if "encoder" in {info.name for info in settings_fields(algorithm_class(given["name"]))}:
            assert given.get("encoder") in {*ENCODERS} - {"auto"}, path


@pytest.mark.parametrize("path", EVERY, ids=of_file)
def test_every_published_value_is_a_row_of_the_table(path: Path) -> None:
    rows = published()
    missing = [row for command in commands(path) for row in command.rows if row not in rows]
    assert not missing
    lines = path.read_text(encoding="utf-8").splitlines()
    marked = sum(len(command.rows) + (command.kind != "file") for command in commands(path))
    assert marked == sum(bool(re.search(r"published:|variant:|ablation:|raysim launch scen", line)) for line in lines)


@pytest.mark.parametrize("path", EVERY, ids=of_file)
def test_a_file_has_its_own_methods_value_and_a_papers_standalone(path: Path) -> None:
    own = _checked(path, ()).loaded.resolved["algorithm"]
    first, rows = commands(path)[0].rows, published()
    assert first, "no published value"
    if path in PAPERS:
        assert {row.paper for row in first} == {PAPER_OF[own["name"]]}
    headline = first[0]
    assert FIELDS[headline.method].items() <= own.items()
    assert "acc" in headline.metric or headline.metric == "MAUA_%"
    cell = {row.method for row in rows if (row.table, row.setting, row.dataset) == at(headline)}
    if path in PAPERS:
        assert cell & {"Standalone", "Local-T"} <= {row.method for row in first}


@pytest.mark.parametrize("path", PAPERS, ids=of_file)
def test_what_every_paper_leaves_open_is_said(path: Path) -> None:
    comment = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    split = _checked(path, ()).loaded.scenario.data.split
    assert split != "auto"
    assert any(f"`{split}`" in line or "test images follow" in line for line in comment), "which images are split how"
    assert any(command.sets == ["clients.independent_init=true"] for command in commands(path))


def test_fedrals_blocks_differ_between_clients_in_a_variant() -> None:
    path = next(path for path in PAPERS if algorithm_in(path) == "fedral")
    fields = [command.checked().loaded.resolved["algorithm"] for command in commands(path)]
    assert {one.get("agg") for one in fields if one["name"] == "fedral" and isinstance(one["blocks"], list)} == {
        "weighted",
        "naive",
    }


def at(row: Row) -> tuple[str, str, str]:
    return row.table, row.setting, row.dataset


@pytest.mark.parametrize("command", WITH_SETS, ids=of_command)
def test_a_command_loads_and_changes_the_scenario(command: Command) -> None:
    assert command.sets
    plain = _checked(command.path, ()).loaded.flat()
    changed = command.checked().loaded.flat()
    for item in command.sets:
        key = item.partition("=")[0]
        # A set that repeats what the file says is a slip, unless it spells out the value an ablation varies.
        spelt_out = key.startswith("algorithm.") and len(command.sets) > 1
        assert changed[key] != plain.get(key) or spelt_out, item
    assert changed != plain


@pytest.mark.parametrize("command", ALL, ids=of_command)
def test_a_profile_is_not_undone_by_the_file(command: Command) -> None:
    algorithm = command.checked().loaded.resolved["algorithm"]
    preset = algorithm_class(algorithm["name"]).profiles.get(algorithm.get("profile"), {})
    assert preset.items() <= algorithm.items()


CELLS = [(command, row) for command in ALL for row in command.rows]


@pytest.mark.parametrize(
    ("command", "row"), CELLS, ids=[f"{c.label}: {r.table} {r.method} {r.metric}" for c, r in CELLS]
)
def test_the_scenario_is_the_rows_setting(command: Command, row: Row) -> None:
    checked = command.checked()
    scenario, resolved = checked.loaded.scenario, checked.loaded.resolved
    setting = row.setting

    # The method: rows of a command are of what it runs, those of the file also of baselines.
    if command.kind != "file":
        assert FIELDS[row.method].items() <= resolved["algorithm"].items()

    name, _, part = row.dataset.partition(" ")
    assert checked.dataset.name == DATASETS[name]
    partition = resolved["data"]["partition"]
    if part:
        held, of = re.fullmatch(r"\((\d+)/(\d+)\)", part).groups()  # type: ignore[union-attr]
        assert (partition["classes_per_client"], checked.dataset.num_classes) == (int(held), int(of))

    clients = re.search(r"N=(\d+)|(\d+) clients", setting)
    assert clients, setting
    assert scenario.clients.count == int(clients[1] or clients[2])
    share = re.search(r"C=(\d+)%", setting)
    if share:
        assert scenario.clients.participation == int(share[1]) / 100
        assert checked.participants * 100 == int(share[1]) * scenario.clients.count
    rounds = re.search(r"(\d+) rounds", setting)
    if rounds:
        assert scenario.rounds == int(rounds[1])

    if row.paper == "HKS":
        assert (partition["name"], scenario.clients.models) == ("hks", RESNETS)
        assert "ResNet-8/16/20 by id%3" in setting
    else:
        homogeneous = setting.startswith("homogeneous")
        assert scenario.clients.models == (["cnn1"] if homogeneous else CNNS)
    alpha = re.search(r"Dirichlet alpha=([\d.]+)", setting)
    if alpha:
        assert partition["name"] in ("dirichlet", "hks") and partition["alpha"] == float(alpha[1])
    else:
        classes = CLASSES_PER_CLIENT[checked.dataset.name]
        assert (partition["name"], partition["classes_per_client"]) == ("pathological", classes)
