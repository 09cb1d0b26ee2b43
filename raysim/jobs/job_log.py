"""Machine-readable lines in a job's log, with its run folder and its summary.

The Jobs API has no other channel: a job's metadata is fixed at submission. Ray keeps the log as long as the job.
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

_SWEEP = re.compile(  # the progress line of a sweep, see `PlainProgress.line`
    r"((trials: )?\d+ \w+(, \d+ \w+)*|ending(: \d+ cells? will end after this round)?); \d+ of \d+ rounds"
)


class JobLogTracker:
    """A tracker that prints a job's run folder and summary into its log, on the cluster.

    on_close: called when the run begins to write its results.
    """

    def __init__(self, on_close: Callable[[], object]) -> None:
        self.on_close = on_close

    def open(self, card: RunCard) -> None:
        """Print the run folder."""
        self.report_folder(card.folder, card.run_id)

    def report_folder(self, folder: Path, run_id: str) -> None:
        """Print the run folder and the run's id."""
        _print({"run_folder": str(folder), "run_id": run_id})

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Do nothing: the progress lines report rounds."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Print the summary."""
        self.on_close()
        _print({"summary": {**summary, "status": status}})


def report_sweep(folder: Path, name: str) -> None:
    """Print the folder with the cells of a sweep."""
    _print({"run_folder": str(folder), "run_id": name, "sweep": True})


def _print(facts: Mapping[str, object]) -> None:
    print(f"{PREFIX}{json.dumps(facts, default=str)}", flush=True)


@dataclass(frozen=True)
class JobLog:
    """The facts in a job's log. Any user of the cluster can write a log, so names are checked and text is printable."""

    run_folder: str = ""  # absolute path on the head node; "" before it exists; for a sweep, the folder of all cells
    run_id: str = ""  # "" before the run folder exists; for a sweep, its name
    sweep: bool = False  # whether the job runs a sweep
    summary: Mapping[str, Any] = field(default_factory=dict)  # content of summary.json; empty until the run ended
    progress: str = ""  # the last progress line
    problem: str = ""  # the error message of the job


def read_log(text: str) -> JobLog:
    """Read the facts in a log, which may be incomplete."""
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
    """Read a line that starts with `PREFIX`; returns no facts if another program wrote it, or it is incomplete."""
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
    """Whether a value has the form of an absolute path."""
    return isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value) <= 4096


def visible(text: str) -> str:
    """The lines of a log to show to users: printable, and without those of `JobLogTracker`."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return "".join(f"{printable(line)}\n" for line in lines if not line.startswith(PREFIX))
