"""What the terminal shows while a run is running: one live line, or plain lines where the output is no terminal."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from raysim.common.results import ClientRow, RunCard, Status
from raysim.report.units import human_bytes, human_seconds, per_cent, plural

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_RECENT = 10  # rounds that the pace is the mean of
_LINE_EVERY_S = 1.0


class Display:
    """The Tracker that shows how far the run is; this one shows nothing."""

    def open(self, card: RunCard) -> None:
        """Show what runs."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Show how round `t` went."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Show the last round, if it is not shown yet."""

    def notify(self, text: str) -> None:
        """Print one line above whatever is shown."""

    def within(self, done: int, of: int) -> None:
        """`done` of the round's `of` participants are done."""


def make_display(rounds: int, clients: int, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """Progress on `stream` (standard error by default): live on a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    if quiet:
        return Display()
    if stream.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}:
        return _Live(rounds, clients, stream)
    return _Plain(rounds, clients, stream)


class _Facts:
    """The latest of what is shown; a metric that a round did not measure keeps its last value."""

    def __init__(self, rounds: int, clients: int) -> None:
        self.rounds, self.clients = rounds, clients
        self.done = 0
        self._values: dict[str, float] = {}
        self._bytes = 0.0
        self._pace_s: deque[float] = deque(maxlen=_RECENT)
        self._last = time.monotonic()

    def take(self, t: int, values: Mapping[str, float | int]) -> None:
        now = time.monotonic()
        self.done = t
        if t > 0:
            self._pace_s.append(now - self._last)
        self._last = now
        self._bytes += values.get("comm/up_bytes", 0) + values.get("comm/down_bytes", 0)
        self._values.update({k: float(v) for k, v in values.items() if v is not None and not math.isnan(v)})

    @property
    def accuracy(self) -> str:
        names = {"accuracy/all": "all", "accuracy/participants": "participants"}
        known = [f"{per_cent(self._values[m])} {name}" for m, name in names.items() if m in self._values]
        return f"accuracy {', '.join(known)}" if known else ""

    @property
    def traffic(self) -> str:
        return f"{human_bytes(self._values.get('comm/total_bytes', self._bytes))} sent"

    @property
    def pace(self) -> str:
        return f"{human_seconds(self._mean_s)}/round" if self._pace_s else ""

    @property
    def left(self) -> str:
        remaining = self.rounds - self.done
        if not self._pace_s or remaining <= 0:
            return ""
        left_s = self._mean_s * remaining
        return f"{human_seconds(left_s) if left_s > 59 else f'{left_s:.0f} s'} left"

    @property
    def _mean_s(self) -> float:
        return sum(self._pace_s) / len(self._pace_s)


class _Plain(Display):
    """A line per round, about one a second at most; the first and the last are always there."""

    def __init__(self, rounds: int, clients: int, stream: TextIO) -> None:
        self._facts = _Facts(rounds, clients)
        self._stream = stream
        self._shown_s = -math.inf
        self._pending = False

    def open(self, card: RunCard) -> None:
        facts = self._facts
        self.notify(f"{card.name}: {plural(facts.rounds, 'round')}, {plural(facts.clients, 'client')}, {card.folder}")

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        self._facts.take(t, values)
        self._pending = True
        if t in {0, 1, self._facts.rounds} or time.monotonic() - self._shown_s >= _LINE_EVERY_S:
            self._print()

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        if self._pending:
            self._print()

    def notify(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _print(self) -> None:
        facts = self._facts
        width = len(str(facts.rounds))
        parts = [f"round {facts.done:>{width}}/{facts.rounds}"]
        parts += [facts.accuracy, facts.traffic, facts.pace, facts.left]
        self.notify("  ".join(part for part in parts if part))
        self._shown_s, self._pending = time.monotonic(), False


class _Live(Display):
    """One line that is drawn over itself."""

    def __init__(self, rounds: int, clients: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._facts = _Facts(rounds, clients)
        self._console = Console(file=stream)
        columns = ["{task.fields[accuracy]}", "{task.fields[traffic]}", "{task.fields[pace]}"]
        self._bar: Bar = Progress(
            TextColumn("[bold]{task.completed:.0f}/{task.total:.0f}[/] rounds"),
            BarColumn(bar_width=20),
            *(TextColumn(column, style="default") for column in columns),
            TextColumn("{task.fields[left]}", style="dim"),
            TextColumn("{task.fields[within]}", style="dim"),
            console=self._console,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=rounds, accuracy="", traffic="", pace="", left="starting", within="")

    def open(self, card: RunCard) -> None:
        facts = self._facts
        self.notify(f"{card.name}: {plural(facts.rounds, 'round')}, {plural(facts.clients, 'client')}, {card.folder}")
        self._bar.start()
        # A run that ends without `close` must not leave the terminal without its cursor.
        atexit.register(self._bar.stop)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        facts = self._facts
        facts.take(t, values)
        self._bar.update(
            self._task,
            completed=t,
            accuracy=facts.accuracy,
            traffic=facts.traffic,
            pace=facts.pace,
            left=facts.left,
        )

    def within(self, done: int, of: int) -> None:
        # A round that is over at once shows nothing of it.
        self._bar.update(self._task, within=f"{done}/{of} clients" if 0 < done < of else "")

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        self._bar.update(self._task, left="" if status == "finished" else status)
        self._bar.stop()
        atexit.unregister(self._bar.stop)

    def notify(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
