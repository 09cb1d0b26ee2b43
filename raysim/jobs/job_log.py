"""Lines of a job's log that are for machines: where its run folder is, how it ended.

The Jobs API has no other way back: metadata is fixed at submission, and the log is kept as long as the job is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.common.results import ClientRow, RunCard, Status
from raysim.common.text import is_name, one_line, printable

PREFIX = "raysim-job: "

LONGEST = 1 << 20
"""Characters of a line of a log; what is longer is cut into several."""


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
class JobLog:
    """What a job's log tells. Anybody can write a log: names have their form, and text can be printed."""

    run_folder: str = ""  # absolute, on the head node, or an address; nothing until the run has one
    run_id: str = ""  # a name; nothing until there is a run folder
    summary: Mapping[str, Any] = field(default_factory=dict)  # as in summary.json; empty until the run ended
    progress: str = ""  # the last progress line
    problem: str = ""  # the sentence that it ended with


def read_log(text: str) -> JobLog:
    """What the log `text` tells so far."""
    facts: dict[str, Any] = {}
    for line in text.split("\n"):
        if line.startswith(PREFIX):
            facts |= _facts(line)
        elif line.startswith("round ") and "/" in line:
            facts["progress"] = one_line(line)
        elif line.startswith("raysim: "):
            facts["problem"] = one_line(line.removeprefix("raysim: "))
    return JobLog(**facts)


def _facts(line: str) -> dict[str, Any]:
    """What a mark says; nothing if it was cut off by the death of the process that wrote it, or is none of `Marks`."""
    try:
        found = json.loads(line.removeprefix(PREFIX))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    facts = {}
    if _is_place(found.get("run_folder")) and is_name(found.get("run_id")):
        facts = {key: found[key] for key in ("run_folder", "run_id")}
    if isinstance(found.get("summary"), dict):
        facts["summary"] = found["summary"]
    return facts


def _is_place(value: object) -> bool:
    """Whether this can be an absolute path or an address."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > 4096:
        return False
    return value.startswith("/") or "://" in value


class Lines:
    """Whole lines out of the pieces of a log, in linear time. A line longer than `longest` comes in several parts."""

    def __init__(self, longest: int) -> None:
        self.longest, self._held, self._size = longest, [""], 0

    def feed(self, text: str) -> Iterator[str]:
        """The lines that `text` completes."""
        *whole, rest = text.split("\n")
        for line in whole:
            yield from self._add(line)
            yield self.end()
        yield from self._add(rest)

    def end(self) -> str:
        """What was never completed."""
        rest = "".join(self._held)
        self._held, self._size = [], 0
        return rest

    def _add(self, text: str) -> Iterator[str]:
        self._held.append(text)
        self._size += len(text)
        if self._size > self.longest:
            line = self.end()
            cut = (len(line) - 1) // self.longest * self.longest
            yield from (line[at : at + self.longest] for at in range(0, cut, self.longest))
            self._held, self._size = [line[cut:]], len(line) - cut


class LogFilter:
    """Takes a log in pieces and gives it back in whole lines, without the marks and safe to print."""

    def __init__(self) -> None:
        self._lines = Lines(LONGEST)

    def feed(self, text: str) -> str:
        """The lines that `text` completes."""
        return "".join(map(self._shown, self._lines.feed(text)))

    def end(self) -> str:
        """The last line, if it was never completed."""
        rest = self._lines.end()
        return self._shown(rest) if rest else ""

    def _shown(self, line: str) -> str:
        return "" if line.startswith(PREFIX) else f"{printable(line)}\n"
