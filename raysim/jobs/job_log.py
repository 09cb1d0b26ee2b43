"""Machine-readable lines in a job's log: its run folder and its summary.

The Jobs API has no other channel: a job's metadata is fixed at submission, and Ray keeps the log as long as the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.common.results import ClientRow, RunCard, Status
from raysim.common.text import is_name, one_line, printable

PREFIX = "raysim-job: "

_SWEEP = re.compile(r"\d+ \w+(, \d+ \w+)*; \d+ of \d+ rounds")  # how far a sweep is


class JobLogTracker:
    """The Tracker that prints them, on the cluster.

    on_close: called when the run begins to write its results.
    """

    def __init__(self, on_close: Callable[[], object]) -> None:
        self.on_close = on_close

    def open(self, card: RunCard) -> None:
        """Print the run folder."""
        self.report_folder(card.folder, card.run_id)

    def report_folder(self, folder: Path, run_id: str) -> None:
        """Print where the results are."""
        _print({"run_folder": str(folder), "run_id": run_id})

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Nothing: the progress lines report rounds."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Print the summary."""
        self.on_close()
        _print({"summary": {**summary, "status": status}})


def report_sweep(folder: Path, name: str) -> None:
    """Print where the cells of a sweep are."""
    _print({"run_folder": str(folder), "run_id": name, "sweep": True})


def _print(facts: Mapping[str, object]) -> None:
    print(f"{PREFIX}{json.dumps(facts, default=str)}", flush=True)


@dataclass(frozen=True)
class JobLog:
    """The facts in a job's log. Any user of the cluster can write one, so names are checked and text is printable."""

    run_folder: str = ""  # absolute, on the head node; "" until the run has one; a sweep's has all cells
    run_id: str = ""  # a name; "" until there is a run folder; a sweep's name
    sweep: bool = False  # whether it is the folder of a sweep
    summary: Mapping[str, Any] = field(default_factory=dict)  # of summary.json; empty until the run ended
    progress: str = ""  # the last progress line
    problem: str = ""  # the sentence of its error


def read_log(text: str) -> JobLog:
    """The facts in the log `text` so far."""
    facts: dict[str, Any] = {}
    for line in text.split("\n"):
        if line.startswith(PREFIX):
            facts |= _facts(line)
        elif (line.startswith("round ") and "/" in line) or _SWEEP.match(line):
            facts["progress"] = one_line(line)
        elif line.startswith("raysim: "):
            facts["problem"] = one_line(line.removeprefix("raysim: "))
    return JobLog(**facts)


def _facts(line: str) -> dict[str, Any]:
    """The facts of a line of `JobLogTracker`; none if another program wrote it, or its process died meanwhile."""
    try:
        entry = json.loads(line.removeprefix(PREFIX))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict):
        return {}
    facts = {}
    if _is_absolute(entry.get("run_folder")) and is_name(entry.get("run_id")):
        facts = {key: entry[key] for key in ("run_folder", "run_id")}
        facts["sweep"] = entry.get("sweep") is True
    if isinstance(entry.get("summary"), dict):
        facts["summary"] = entry["summary"]
    return facts


def _is_absolute(value: object) -> bool:
    """Whether this is an absolute path, by its form."""
    return isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value) <= 4096


def visible(text: str) -> str:
    """The lines of a log that are for people, safe to print: without those of `JobLogTracker`."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return "".join(f"{printable(line)}\n" for line in lines if not line.startswith(PREFIX))
