"""docs/results: the CSV files of measured runs agree with each other, and the site's tables follow from them."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
from typing import Any

import pytest

from raysim.study.cells import chosen_cells
from raysim.study.definition import load_sweep
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


@pytest.mark.large
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
