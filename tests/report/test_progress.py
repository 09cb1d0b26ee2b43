"""Progress is plain where there is no terminal, live on a terminal, and leaves the terminal as it was."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from raysim.common.results import RunCard
from raysim.report import progress as progress_module
from raysim.report.progress import make_display
from raysim.runs.signals import notice

CARD = RunCard("quick", "r1", Path("/runs/quick/r1"), {}, {}, "digits", "s", "d", "p", 10, 20, "fedgh-s1", {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def values(t):
    return {
        "accuracy/all": t / 100,
        "accuracy/participants": t / 50,
        "comm/up_bytes": 2**19,
        "comm/down_bytes": 2**19,
    }


def run(stream, rounds=30):
    progress = make_display(rounds, 20, stream=stream)
    progress.open(CARD)
    for t in range(rounds + 1):
        progress.log(t, values(t), [])
        if t == 5:
            progress.print("actor 3 [died]; went on")
    progress.close("finished", {})
    return stream.getvalue()


def test_plain_lines():
    lines = run(io.StringIO()).splitlines()
    assert lines[1].startswith("round  0/30  accuracy 0.0%")
    assert "2.00 MiB" in lines[2] and lines[3] == "actor 3 [died]; went on"
    assert lines[-1].startswith("round 30/30  accuracy 30.0%") and "left" not in lines[-1]
    assert len(lines) <= 7, "more than about one line a second"
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("last", "pace"),
    [(15, "1.00 s/round  15 s left"), (14, "10.9 s/round  2 min 54 s left")],
)
def test_the_pace_is_that_of_the_last_ten_rounds(monkeypatch, last, pace):
    # Rounds 0 to 5 take 100 s each, later ones 1 s. The last ten are rounds 6 to 15, or 5 to 14: (100 + 9 * 1) / 10.
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = make_display(30, 20, stream=stream)
    for t in range(last + 1):
        now[0] += 100 if t < 6 else 1
        progress.log(t, {}, [])
    assert stream.getvalue().splitlines()[-1].endswith(pace)


def test_terminals_that_cannot_move_the_cursor_get_plain_lines(monkeypatch):
    # rich writes no control sequences there either, but then it shows no line before the end.
    monkeypatch.setenv("TERM", "dumb")
    text = run(Terminal())
    assert "\x1b" not in text and "\nround  1/30  accuracy 1.0%" in text


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows of a text, whose control sequences move the cursor or erase its line."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[?\d;]*[a-zA-Z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] not in "\x1b\r":
            lines[row] += part
    return lines


@pytest.mark.parametrize("columns", [140, 60])
def test_a_notice_of_ctrl_c_stays_on_the_screen(monkeypatch, columns):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    progress = make_display(10, 20, stream=stream)
    progress.open(CARD)
    shown = {**values(3), "accuracy/all_current": 0.5, "engine/dropped_clients": 3}
    progress.log(3, shown, [])
    progress.print("a notice")  # draws the lines
    stream.write(notice("ending after this round is saved", terminal=True))
    progress.log(4, shown, [])
    progress.close("interrupted", {})
    assert "raysim: ending after this round is saved" in screen(stream.getvalue())
    assert notice("a", terminal=False) == "\nraysim: a\n"
