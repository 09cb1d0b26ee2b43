"""Machine-readable lines in a job's log, with its run folder and its summary.

The Jobs API has no other channel: a job's metadata is fixed at submission. Ray keeps the log as long as the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysim.common.results import ClientRow, RunCard, Status

PREFIX = "raysim-job: "

PROGRESS = re.compile(r"round +\d+/\d+ |.*; \d+ of \d+ rounds")
"""A progress line of a run or of a sweep."""


def report(**facts: object) -> None:
    """Print facts: the fields of `JobLog`."""
    print(f"{PREFIX}{json.dumps(facts, default=str)}", flush=True)


class JobLogTracker:
    """A tracker that prints a job's run folder and summary into its log, on the cluster."""

    def open(self, card: RunCard) -> None:
        """Print the run folder."""
        report(run_folder=card.folder)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Do nothing: the progress lines report rounds."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Print the summary."""
        report(summary={**summary, "status": status})


@dataclass(frozen=True)
class JobLog:
    """The facts in a job's log."""

    run_folder: str = ""  # absolute path on the head node; "" before it exists; for a sweep, the folder of all cells
    sweep: bool = False  # whether the job runs a sweep
    summary: Mapping[str, Any] = field(default_factory=dict)  # content of summary.json; empty until the run ended
    progress: str = ""  # the last progress line
    problem: str = ""  # the error message of the job


def read_log(text: str) -> JobLog:
    """Read the facts in a log; its last line may be incomplete."""
    facts: dict[str, Any] = {}
    for line in text.split("\n")[:-1]:
        if line.startswith(PREFIX):
            facts |= json.loads(line.removeprefix(PREFIX))
        elif PROGRESS.match(line):
            facts["progress"] = line
        elif line.startswith("raysim: "):
            facts["problem"] = line.removeprefix("raysim: ")
    return JobLog(**facts)


def visible(text: str) -> str:
    """The lines of a log to show to users."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(PREFIX))
