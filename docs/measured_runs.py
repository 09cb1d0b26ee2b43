"""The tables of the page on measured runs, from the CSV files in docs/results."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
SWEEPS = {
    "digits": "scenarios/sweeps/digits.yaml",
    "public": "scenarios/sweeps/public.yaml",
    "cifar100": "scenarios/sweeps/cifar100.yaml",
    "cifar100_published": "scenarios/sweeps/cifar100_published.yaml",
    "hks_table1": "scenarios/papers/hks/table1.yaml",
}
"""CSV file -> the sweep that wrote it, for the command."""

TITLES = {
    "last": "final accuracy",
    "at_best_val": "test at best val.",
    "best_participants": "best part.",
    "best": "best round",
    "last_global": "final global",
    "total_mib": "MiB",
}


def markdown() -> str:
    """Return a heading and a table for each sweep, with a row per run."""
    return "\n".join(line for sweep in SWEEPS for line in _table(sweep))


def _table(sweep: str) -> Iterator[str]:
    with (RESULTS / f"{sweep}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    measures = [name for name in rows[0] if name in TITLES]
    yield from ("", f"## {sweep}", "", f"{len(rows)} runs. A run is repeated by its name in the first column:", "")
    yield from ("```", f"raysim sweep {SWEEPS[sweep]} --only '{_name(rows[0])}'", "```", "")
    yield f"| run | {' | '.join(TITLES[name] for name in measures)} | digest |"
    yield f"| --- |{' ---: |' * len(measures)} --- |"
    for row in rows:
        values = " | ".join(_number(name, row[name]) for name in measures)
        yield f"| {_name(row)} | {values} | `{row['digest'][:16]}` |"


def _name(row: Mapping[str, str]) -> str:
    return f"{row['variant']} seed={row['seed']}"


def _number(measure: str, value: str) -> str:
    return f"{float(value):.2f}" if measure == "total_mib" else f"{100 * float(value):.2f}"
