"""`raysim report --watch`: writes a report again and again until its runs have ended."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.common.files import is_locked
from raysim.comparison.report import Live, report
from raysim.comparison.runs import run_folders
from raysim.comparison.sweep_card import SWEEP_LOCK, SweepCard
from raysim.report.load import is_running, read_summary, rounds_done

EVERY_S = 5.0
"""Seconds between two reports; more, if writing one takes longer than a second."""


@dataclass(frozen=True)
class Watched:
    """The state of the runs below a folder."""

    line: str  # how many runs are in which state
    running: bool  # whether a process runs a run or a sweep there
    begun: bool  # whether there is a run
    measured: bool  # whether a run has finished a round

    @classmethod
    def of(cls, folder: Path) -> Watched:
        """Read the state. Raises `ScenarioError` if a folder or a file is damaged."""
        runs = run_folders(folder) if folder.exists() else []
        running = is_locked(folder / SWEEP_LOCK) or any(map(is_running, runs))
        summaries = [read_summary(run) for run in runs]
        done = [rounds_done(run, summary) for run, summary in zip(runs, summaries, strict=True)]
        asked = [int(summary.get("rounds_asked") or 0) for summary in summaries]
        states = Counter(str(summary.get("status")) for summary in summaries)
        card = SweepCard.read(folder)
        begun = {run.parent.name for run in runs}
        waiting = sum(cell not in begun for cell in card.cells) if card else 0
        words = [f"{count} {state}" for state, count in states.most_common()]
        if len(runs) == 1 and not waiting:
            words = [*states]
        words += [f"{waiting} waiting"] if waiting else []
        done_of = [(t, of) for t, of in zip(done, asked, strict=True) if of]
        rounds = f"; {sum(t for t, _ in done_of)} of {sum(of for _, of in done_of)} rounds" if done_of else ""
        rounds += " of these runs" if done_of and len(runs) + waiting > 1 else ""
        name = folder.resolve().name
        return cls(f"{name}: {', '.join(words) or 'no run has begun yet'}{rounds}", running, bool(runs), any(done))


def watch(
    sources: Sequence[Path],
    output: Path | str,
    baseline: str | None = None,
    show: Callable[[str], None] = lambda line: None,
    sleep: Callable[[float], None] = time.sleep,
    select: str = "last",
    metric: str | None = None,
) -> Path:
    """Write a report on runs every few seconds until they have ended, and return its path.

    A source may be missing, or have no run, at first. The page refreshes itself in the browser; the last page does not,
    nor does the page after Ctrl-C. show: receives a line with the state of each source whenever it has changed.
    Raises as `report`, and `KeyboardInterrupt` after Ctrl-C.
    """
    # The runs of the baseline may begin later, and so may the rounds that measure the accuracy.
    *fuller, least = dict.fromkeys([(baseline, select, metric), (None, select, metric), (None, "last", None)])
    before: list[str] = []
    watched: dict[Path, Watched] = {}

    def write_what_is_known(refresh_s: int | None) -> None:
        """Write the page; without the baseline or the chosen accuracy if no run has it yet."""
        for choice in fuller:
            with contextlib.suppress(ScenarioError):
                _write(watched, output, *choice, refresh_s)
                return
        _write(watched, output, *least, refresh_s)

    try:
        while True:
            began_s = time.monotonic()
            watched = {source: Watched.of(source) for source in sources}
            lines = [one.line for one in watched.values()]
            for line in lines:
                if line not in before:
                    show(line)
            before = lines
            if all(one.begun and not one.running for one in watched.values()):
                return _write(watched, output, baseline, select, metric)
            write_what_is_known(round(EVERY_S))
            sleep(max(EVERY_S, 4 * (time.monotonic() - began_s)))
    except KeyboardInterrupt:
        if watched:
            write_what_is_known(None)
        raise


def _write(
    watched: Mapping[Path, Watched],
    output: Path | str,
    baseline: str | None,
    select: str,
    metric: str | None,
    refresh_s: int | None = None,
) -> Path:
    measured = [source for source, one in watched.items() if one.measured]
    live = Live([one.line for one in watched.values()], refresh_s, time.strftime("%H:%M:%S"))
    name = ", ".join(source.resolve().name for source in watched)
    return report(*measured, output=output, baseline=baseline, live=live, name=name, select=select, metric=metric)
