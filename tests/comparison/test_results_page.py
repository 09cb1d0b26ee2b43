"""docs/results: the CSV files of measured runs agree with each other, and the site's tables follow from them."""

from __future__ import annotations

import csv
import importlib
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from raysim.algorithms.fedclassavg import FedClassAvg
from raysim.algorithms.fedssa import FedSSA
from raysim.algorithms.standalone import Standalone
from raysim.contract.trial import Trial
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.state import digest
from raysim.sweeps.cells import chosen_cells
from raysim.sweeps.definition import load_sweep
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
FOLDER = DOCS / "results"


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a file in docs/results."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "tables.py"))


def test_every_table_has_its_mark_and_its_file_a_link(tables: dict[str, Any]) -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^<!-- table: (\w+) -->$", page, re.MULTILINE)) == sorted(tables["TABLES"])
    assert "<!--" not in tables["expand"](page)
    assert all(f"(results/{path.relative_to(FOLDER).as_posix()})" in page for path in FOLDER.rglob("*.csv"))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("digits", "| fedtgp | 70.72 ± 3.36 | -28.61 ± 3.61 | 56.42 ± 3.42 | -41.51 ± 3.31 | 45.78 ± 2.43 |"),
        ("digits_tuned", "| dc_pfl | 99.78 ± 0.39 | +0.34 ± 0.64 | 98.05 ± 0.48 | +0.54 ± 0.44 | 96.41 ± 1.19 |"),
        ("cifar100_published", "| FedSSA | 57.70 | 52.51 | 76.45 | +2.11 | +2.05 | +4.25 | 57.29 |"),
        ("cifar100_published", "| FedAPEN | 63.98 | 59.51 | 10912.29 | +8.39 | +9.04 | - | - |"),
        ("fedral_choices", "| own first weights | 38.75 | +0.49 | +0.21 |"),
        ("hks_table1", "| HKS top | 89.84 | 70.49 | 86.96 | 68.59 |"),
        ("public", "| FedMD | 88.61 ± 1.80 | 4.70 | -9.52 ± 2.28 |"),
        ("beside_fluke", "| apfl | trained | 94.13 ± 1.11 | 95.21 ± 0.83 | -1.07 ± 0.28 | -0.52 ± 0.69 | - |"),
        ("beside_pfllib", "| fd | 99.52 | 85 | 99.49 | 99.51 ± 0.03 | +0.01 |"),
    ],
)
def test_a_row_of_each_table(tables: dict[str, Any], table: str, row: str) -> None:
    """The values were also computed by an earlier version of this test, from the same files."""
    assert row in tables["TABLES"][table]()


@pytest.mark.parametrize(
    ("sweep", "last"), [("cifar100", 500), ("cifar100_published", 200), ("cifar100_published_500", 500)]
)
def test_every_round(sweep: str, last: int) -> None:
    """The file with every round agrees with the file with the results."""
    rounds, results = rows(f"rounds/{sweep}"), rows(sweep)
    assert list(dict.fromkeys(row["variant"] for row in rounds)) == [row["variant"] for row in results]
    for result in results:
        mine = [row for row in rounds if row["variant"] == result["variant"]]
        assert [int(row["round"]) for row in mine] == list(range(1, last + 1))
        chosen = max(mine, key=lambda row: float(row["val"]))
        for measure, value in (
            ("last", mine[-1]["all"]),
            ("best_participants", max(row["participants"] for row in mine)),
            ("at_best_val", chosen["all"]),
        ):
            assert float(value) == pytest.approx(float(result[measure]), abs=1e-6)


def test_500_rounds_begin_with_the_200_rounds_of_another_machine() -> None:
    long, short = rows("rounds/cifar100_published_500"), rows("rounds/cifar100_published")
    for variant in {row["variant"] for row in long}:
        early, all_of_it = ([row for row in some if row["variant"] == variant] for some in (long, short))
        assert early[:200] == all_of_it


def test_two_readings_of_fedral_have_the_same_training() -> None:
    digests = {row["variant"]: row["digest"] for row in rows("fedral_choices")}
    assert digests["as chosen"] == digests["inference without a matrix"] and len(set(digests.values())) == 7


def test_every_file_has_a_digest_for_every_run() -> None:
    for path in FOLDER.glob("*.csv"):
        assert all(re.fullmatch(r"[0-9a-f]{64}", row["digest"]) for row in rows(path.stem)), path


def test_repeated_runs_have_the_same_digest() -> None:
    (again,) = rows("repeated")
    (first,) = [row for row in rows(again["sweep"]) if row["variant"] == again["variant"]]
    assert (first["seed"], first["digest"]) == (again["seed"], again["digest"])


def test_clients_with_what_they_receive_are_those_of_the_sweep() -> None:
    own, received = (
        {row["variant"]: (round(float(row["last"]), 9), row["digest"]) for row in rows(name)}
        for name in ("cifar100_published", "received")
    )
    assert received == own


@pytest.mark.parametrize(
    ("name", "constant", "key"),
    [
        ("beside_niid_bench", "REPORTED", lambda row: row["partition"]),
        ("beside_pfllib", "PUBLISHED", lambda row: (row["partition"], row["method"])),
    ],
)
def test_reported_values_are_those_of_the_script(
    name: str, constant: str, key: Callable[[dict[str, str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")  # `runpy` does not add the folder of the script
    reported = runpy.run_path(str(REPOSITORY / "benchmarks" / f"{name}.py"))[constant]
    for row in rows(name):
        if row["reported"]:
            value = reported[key(row)]
            shown = value if isinstance(value, str) else "{:.2f} ± {:.2f}".format(*value)
            assert shown == f"{row['reported']} ± {row['deviation']}"


@pytest.mark.parametrize("sweep", ["cifar100", "cifar100_published"])
def test_the_figure_shows_the_file(sweep: str, tmp_path: Path) -> None:
    """A figure that another release of Matplotlib drew has other bytes, so it is compared only with its own."""
    shown = FOLDER / "rounds" / f"{sweep}.svg"
    (release,) = set(re.findall(r"Matplotlib v([.0-9]+[0-9])", shown.read_text(encoding="utf-8")))
    if release != matplotlib.__version__:
        pytest.skip(f"the figure was drawn by Matplotlib {release}")
    draw = runpy.run_path(str(FOLDER / "rounds" / "draw.py"))["draw"]
    assert draw(sweep, tmp_path / "again.svg").read_bytes() == shown.read_bytes()


def test_the_command_of_every_run_repeats_that_run() -> None:
    page = runpy.run_path(str(FOLDER.parent / "measured_runs.py"))
    sections = page["markdown"]().split("\n## ")[1:]
    assert [section.split("\n")[0] for section in sections] == list(page["SWEEPS"])
    for sweep, section in zip(page["SWEEPS"], sections, strict=True):
        shown = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
        assert len(shown) == len(rows(sweep))
        (line,) = [line for line in section.splitlines() if line.startswith("raysim sweep ")]
        _, _, file, _, first = shlex.split(line)
        cells = load_sweep(REPOSITORY / file)
        assert [first] == [cell.name for cell in chosen_cells(cells, [shown[0][0][2:]])]
        for name, *_ in shown:
            assert [name[2:]] == [cell.name for cell in chosen_cells(cells, [name[2:]])]


def test_the_watched_fedclassavg_is_fedclassavg() -> None:
    watched = runpy.run_path(str(FOLDER / "fedclassavg_gradients.py"))["Watched"]
    mine, original = (Trial(method).run(2) for method in (watched(), FedClassAvg()))
    assert digest(mine.states()) == digest(original.states())


def late_start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AnyAlgorithm]:
    """Import the method that begins late, as a module: the server's state contains objects of its classes."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("late_start").LateStart  # type: ignore[no-any-return]


def test_a_late_start_begins_with_the_last_model_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_start(monkeypatch)
    toy = Trial(late()).round(1, [0, 1]).round(2, [0, 3])
    assert toy.server.arch[0] == toy.server.arch[3]
    sent = [msg.model for hook, _, msg in toy.sent if hook == "server_send"]
    trained, *_ = [msg.model for hook, k, msg in toy.sent if (hook, k) == ("client_update", 0)]
    assert sent[:3] == [None, None, None], "in round 2, client 0 is not new"
    assert digest(sent[3]) == digest(trained)


def test_late_starts_train_as_their_methods_do(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_start(monkeypatch)
    for rows, method in ((True, FedSSA()), (False, Standalone())):
        mine, original = (Trial(one).run(2) for one in (late(rows=rows), method))
        states = (toy.states() for toy in (mine, original))
        mine_of, original_of = ({k: s for k, s in one.items() if "client" in k} for one in states)
        assert mine_of and mine_of == original_of
