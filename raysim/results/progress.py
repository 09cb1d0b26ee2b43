"""Progress display of a run: live lines in a terminal, or one line per round on any other output."""

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


class Screen:
    """Shows lines and, below them, progress: updated in place in a terminal, as further lines on any other stream.

    Attributes:
        is_live: whether the progress is updated in place.
    """

    def __init__(self, stream: TextIO, every_s: float, quiet: bool = False) -> None:
        """every_s: minimum seconds between two lines with the progress. quiet: show nothing."""
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, quiet=quiet, force_jupyter=False)
        self._live = Live(console=self._console, refresh_per_second=4)
        self.is_live = not quiet and stream.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
        self._every_s = every_s
        self._shown, self._shown_s = "", -math.inf

    def start(self) -> None:
        """Begin to show progress."""
        if self.is_live:
            self._live.start()
            # If the program ends without `stop`, the terminal must get its cursor back.
            atexit.register(self._live.stop)

    def stop(self) -> None:
        """Leave the last progress on the screen."""
        self._live.stop()
        atexit.unregister(self._live.stop)

    def print(self, text: str) -> None:
        """Print one line above the progress."""
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        if self.is_live:  # with soft_wrap, rich cuts the live lines at the terminal's width, so they are drawn again
            self._live.refresh()

    def show(self, lines: Sequence[str], at_once: bool = False) -> None:
        """Show the progress. at_once: also print it if the last such line was printed a moment ago."""
        text = ("\n" if self.is_live else "  ").join(filter(None, lines))
        if self.is_live:
            from rich.text import Text

            self._live.update(Text(text))
        elif text != self._shown and (at_once or time.monotonic() - self._shown_s >= self._every_s):
            self._shown, self._shown_s = text, time.monotonic()
            self.print(text)


class Display:
    """A tracker that displays the progress of a run; without a terminal, in at most about one line per second.

    The first and the last round are always shown. A line shows only metrics of its own round: the accuracy of an
    earlier round would look like that of this round.
    """

    def __init__(self, rounds: int, clients: int, quiet: bool = False, stream: TextIO | None = None) -> None:
        """quiet: show nothing. stream: where to show the progress; None: standard error."""
        self._rounds, self._clients = rounds, clients
        self._screen = Screen(stream or sys.stderr, _LINE_EVERY_S, quiet)
        self._done = 0
        self._values: dict[str, float] = {}  # values of the last round
        self._bytes = 0.0
        self._ended_s: deque[float] = deque(maxlen=_RECENT + 1)  # time.monotonic() at the ends of the last rounds
        self._now = "starting"  # what the round or the run does at the moment, for a terminal

    def open(self, card: RunCard) -> None:
        """Show the name, size and folder of the run."""
        self.print(f"{card.name}: {plural(self._rounds, 'round')}, {plural(self._clients, 'client')}, {card.folder}")
        self._screen.start()

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Show the results of round `t`."""
        self._done = t
        self._ended_s.append(time.monotonic())
        self._bytes += values.get("comm/up_bytes", 0) + values.get("comm/down_bytes", 0)
        self._values = {k: float(v) for k, v in values.items() if v is not None and not math.isnan(v)}
        self._show(at_once=t in {0, 1, self._rounds})

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Show the last round."""
        self._now = "" if status == "finished" else status
        if self._ended_s or self._screen.is_live:
            self._show(at_once=True)
        self._screen.stop()

    def print(self, text: str) -> None:
        """Print one line above the progress."""
        self._screen.print(text)

    def within(self, done: int, of: int) -> None:
        """Show, in a terminal, that `done` of the `of` participants of the current round are done."""
        # A terminal is drawn a few times per second, so the count of a very short round is never seen.
        self._now = f"{done}/{of} clients" if 0 < done < of else ""
        if self._screen.is_live:
            self._show()

    def _show(self, at_once: bool = False) -> None:
        round_number = f"round {self._done:>{len(str(self._rounds))}}/{self._rounds}"
        now = [self._now] if self._screen.is_live and self._now else []
        lines = [[round_number, *now], self._results(), self._pace()]
        self._screen.show(["  ".join(line) for line in lines], at_once)

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
