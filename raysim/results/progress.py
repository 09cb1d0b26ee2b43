"""Progress display of a run: two live lines in a terminal, or one line per round on any other output."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TextIO

from raysim.common.results import ClientRow, RunCard, Status
from raysim.results.units import human_bytes, human_seconds, per_cent, plural

_RECENT = 10  # number of rounds for the mean of the seconds per round
_LINE_EVERY_S = 1.0


class Display:
    """Base class of trackers that display progress. It displays nothing itself."""

    def open(self, card: RunCard) -> None:
        """Show the name, size and folder of the run."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Show the results of round `t`."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Show the last round, unless it is already shown."""

    def print(self, text: str) -> None:
        """Print one line above the progress."""

    def within(self, done: int, of: int) -> None:
        """Show that `done` of the `of` participants of the current round are done."""


def make_display(rounds: int, clients: int, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """Return a progress display for `stream` (default: standard error), live in a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    if quiet:
        return Display()
    if stream.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}:
        return _Live(rounds, clients, stream)
    return _Plain(rounds, clients, stream)


class _Plain(Display):
    """A display with one line per round, at most about one per second. The first and last line are always printed.

    A line shows only metrics of its own round: the accuracy of an earlier round would look like that of this round.
    """

    def __init__(self, rounds: int, clients: int, stream: TextIO) -> None:
        self._rounds, self._clients, self._stream = rounds, clients, stream
        self._done = 0
        self._values: dict[str, float] = {}  # values of the last round
        self._bytes = 0.0
        self._ended_s: deque[float] = deque(maxlen=_RECENT + 1)  # time.monotonic() at the ends of the last rounds
        self._shown_s = -math.inf
        self._pending = False

    def open(self, card: RunCard) -> None:
        self.print(f"{card.name}: {plural(self._rounds, 'round')}, {plural(self._clients, 'client')}, {card.folder}")

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        self._done, self._pending = t, True
        self._ended_s.append(time.monotonic())
        self._bytes += values.get("comm/up_bytes", 0) + values.get("comm/down_bytes", 0)
        self._values = {k: float(v) for k, v in values.items() if v is not None and not math.isnan(v)}
        if t in {0, 1, self._rounds} or time.monotonic() - self._shown_s >= _LINE_EVERY_S:
            self._show()

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        if self._pending:
            self._show()

    def print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _show(self) -> None:
        round_number = f"round {self._done:>{len(str(self._rounds))}}/{self._rounds}"
        self.print("  ".join([round_number, *self._results(), *self._pace()]))
        self._shown_s, self._pending = time.monotonic(), False

    def _results(self) -> list[str]:
        """Return phrases with accuracy, sent bytes and dropped clients; unknown values are left out."""
        names = {
            "accuracy/all": "all clients' own networks",
            "accuracy/all_current": "all clients after the current message",
            "accuracy/participants": "participants",
        }
        known = [f"{per_cent(self._values[m])} ({name})" for m, name in names.items() if m in self._values]
        results = [f"accuracy {', '.join(known)}"] if known else []
        results.append(f"{human_bytes(self._values.get('comm/total_bytes', self._bytes))} sent")
        if dropped := self._values.get("engine/dropped_clients"):
            results.append(f"{dropped:.0f} dropped out or late")
        return results

    def _pace(self) -> list[str]:
        """Return phrases with the seconds per round and the remaining time; none before the second round."""
        if len(self._ended_s) < 2:  # the first round also includes the start of the run
            return []
        mean_s = (self._ended_s[-1] - self._ended_s[0]) / (len(self._ended_s) - 1)
        left_s = mean_s * (self._rounds - self._done)
        pace = [f"{human_seconds(mean_s)}/round"]
        if left_s > 0:  # rounded up, so that a remaining round never shows 0 s
            pace.append(f"{human_seconds(left_s) if left_s > 59 else f'{math.ceil(left_s)} s'} left")
        return pace


class _Live(_Plain):
    """Two lines that are updated in place: completed rounds and their pace, and the last round's results.

    The results have their own line: beside the pace, they would not fit into 80 columns and would wrap differently in
    every update.
    """

    def __init__(self, rounds: int, clients: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(rounds, clients, stream)
        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=4)
        self._now = "starting"  # what the round or the run does at the moment

    def open(self, card: RunCard) -> None:
        super().open(card)
        self._live.start()
        # If a run ends without `close`, the terminal must get its cursor back.
        atexit.register(self._live.stop)

    def within(self, done: int, of: int) -> None:
        # After a very short round, the display has no time to show this.
        self._now = f"{done}/{of} clients" if 0 < done < of else ""
        self._show()

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        self._now = "" if status == "finished" else status
        self._show()
        self._live.stop()
        atexit.unregister(self._live.stop)

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        # With soft_wrap, rich cuts the live lines at the terminal's width, so they are drawn again.
        self._live.refresh()

    def _show(self) -> None:
        from rich.text import Text

        lines = [[f"{self._done}/{self._rounds} rounds", *self._pace(), self._now], self._results()]
        self._live.update(Text("\n".join("  ".join(line) for line in lines)))
