"""docs/results.md says what the measured runs beside it gave: each number of its tables follows from its CSV files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from raysim.comparison.statistics import Estimate, estimate, paired_difference
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
FOLDER = REPOSITORY / "docs" / "results"
CLASSES = " data.partition.classes_per_client="
ALONE = {
    "FedMD": "Standalone, five networks",
    "FedDF": "Standalone, five networks",
    "HeteroFL": "Standalone, three widths",
    "FedGKT": "Standalone, two ResNets",
}
"""Method -> the runs with the same networks that learn alone, where they are not called Standalone."""


def tables(sweep: str) -> list[list[str]]:
    """The cells of the section's table that links to this sweep's file, without its header."""
    (section,) = [part for part in PAGE.split("\n## ") if f"(results/{sweep}.csv)" in part]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def values(path: Path, variant: str, measure: str) -> dict[str, float]:
    """Seed -> the measure, accuracies in per cent."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == variant]
    assert rows, variant
    return {row["seed"]: float(row[measure]) * (1 if measure == "total_mib" else 100) for row in rows}


def cell(found: Estimate | None, sign: str = "") -> str:
    assert found is not None
    half = "" if found.half_width is None else f" ± {found.half_width:.2f}"
    return f"{found.mean:{sign}.2f}{half}"


def expected(path: Path, variant: str, alone: str, measures: list[str]) -> list[str]:
    """Each measure, and what the first is above the runs alone."""
    cells = [cell(estimate(list(values(path, variant, measure).values()))) for measure in measures]
    if variant == alone:
        return [*cells, "-"]
    first = measures[0]
    return [*cells, cell(paired_difference(values(path, variant, first), values(path, alone, first)), "+")]


def test_digits() -> None:
    path = FOLDER / "digits.csv"
    found = tables("digits")
    assert len(found) == 16
    for method, *cells in found:
        assert cells == [
            text
            for count in (2, 3, 5)
            for text in expected(path, f"{method}{CLASSES}{count}", f"standalone{CLASSES}{count}", ["last"])
        ]


@pytest.mark.parametrize(
    ("sweep", "measures"),
    [
        ("cifar100", ["last", "best_participants", "total_mib"]),
        ("fashion_mnist", ["last", "last_global"]),
        ("public", ["last", "at_best_val", "total_mib"]),
    ],
)
def test_the_others(sweep: str, measures: list[str]) -> None:
    rows = tables(sweep)
    assert len(rows) >= 6
    for variant, *cells in rows:
        alone = ALONE.get(variant, "Standalone" if not variant.startswith("Standalone") else variant)
        assert cells[: len(measures) + 1] == expected(FOLDER / f"{sweep}.csv", variant, alone, measures)


def test_every_file_has_a_digest_for_every_run() -> None:
    for path in FOLDER.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            digests = [row["digest"] for row in csv.DictReader(file)]
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)
