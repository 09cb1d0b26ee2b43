"""Lines of a job's log that are for machines: where its run folder is, how it ended.

The Jobs API has no other way back: metadata is fixed at submission, and the log is kept as long as the job is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.core.results import ClientRow, RunCard, Status

PREFIX = "raysim-job: "


class Marks:
    """The Tracker that prints them, on the cluster.

    ending: called when the run has come to writing its results.
    """

    def __init__(self, ending: Callable[[], object]) -> None:
        self.ending = ending

    def open(self, card: RunCard) -> None:
        """Tell where the results go."""
        self.found(card.folder, card.run_id)

    def found(self, folder: Path, run_id: str) -> None:
        """Tell where the results are."""
        self._say({"run_folder": str(folder), "run_id": run_id})

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Rounds are told by the progress lines."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Tell how it ended."""
        self.ending()
        self._say({"summary": {**summary, "status": status}})

    def _say(self, facts: Mapping[str, object]) -> None:
        print(f"{PREFIX}{json.dumps(facts, default=str)}", flush=True)


@dataclass(frozen=True)
class Told:
    """What a job's log tells."""

    run_folder: str = ""  # on the head node; nothing until the run has one
    run_id: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)  # as in summary.json; empty until the run ended
    progress: str = ""  # the last progress line
    problem: str = ""  # the sentence that it ended with


def read_log(text: str) -> Told:
    """What the log `text` tells so far."""
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
            facts |= _facts(line)
        elif line.startswith("round ") and "/" in line:
            facts["progress"] = line
        elif line.startswith("raysim: "):
            facts["problem"] = line.removeprefix("raysim: ")
    return Told(**facts)


def _facts(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line.removeprefix(PREFIX))
    except ValueError:
        return {}  # cut off by the death of whoever wrote it
    return {key: found[key] for key in ("run_folder", "run_id", "summary") if key in found}


class Unmarked:
    """Takes a log in pieces and gives it back in whole lines, without the marks."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> str:
        """The lines that `text` completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        return "".join(f"{line}\n" for line in self._without(lines))

    def end(self) -> str:
        """The last line, if it was never completed."""
        rest, self._rest = self._rest, ""
        return f"{rest}\n" if rest and not rest.startswith(PREFIX) else ""

    def _without(self, lines: Sequence[str]) -> list[str]:
        return [line for line in lines if not line.startswith(PREFIX)]
