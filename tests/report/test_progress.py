"""Progress is plain where there is no terminal, live on a terminal, and leaves the terminal as it was."""

from __future__ import annotations

import io
import math
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
    assert lines[0] == "quick: 30 rounds, 20 clients, /runs/quick/r1"
    assert lines[1].startswith(
        "round  0/30  accuracy 0.0% (all clients' own networks), 0.0% (participants)  1.00 MiB sent"
    )
    assert re.fullmatch(r"round  1/30  accuracy 1\.0% \(all .* 2\.00 MiB sent  .*/round  .* left", lines[2])
    assert lines[3] == "actor 3 [died]; went on"
    assert lines[-1].startswith("round 30/30  accuracy 30.0% (all clients' own networks)") and "left" not in lines[-1]
    assert len(lines) <= 7, "more than about one line a second"
    assert "\x1b" not in "".join(lines)


def test_plain_lines_say_every_round_when_rounds_are_slow(monkeypatch):
    monkeypatch.setattr(progress_module, "_LINE_EVERY_S", 0.0)
    assert len(run(io.StringIO(), rounds=4).splitlines()) == 6


def test_a_round_without_a_test_prints_no_accuracy(monkeypatch):
    monkeypatch.setattr(progress_module, "_LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    progress = make_display(5, 20, stream=stream)
    progress.open(CARD)
    for t in range(6):  # evaluation.every: 3
        progress.log(t, values(t) if t in (0, 3, 5) else {"comm/up_bytes": 2**19, "comm/total_bytes": 2**20 * t}, [])
    shown = ["accuracy" in line for line in stream.getvalue().splitlines()[1:]]
    assert shown == [True, False, False, True, False, True]


def test_what_is_unknown_is_not_shown_and_what_dropped_out_is():
    stream = io.StringIO()
    progress = make_display(1, 20, stream=stream)
    shown = {"accuracy/all": math.nan, "accuracy/participants": 0.25, "engine/dropped_clients": 3}
    progress.log(0, {**shown, "comm/up_bytes": 1024, "comm/total_bytes": 4096}, [])
    assert stream.getvalue() == "round 0/1  accuracy 25.0% (participants)  4.00 KiB sent  3 dropped out or late\n"


def test_last_round_is_said_when_the_run_stops_early():
    stream = io.StringIO()
    progress = make_display(100, 20, stream=stream)
    progress.open(CARD)
    for t in range(8):
        progress.log(t, {} if t == 7 else values(t), [])
    progress.close("interrupted", {})
    progress.close("interrupted", {})
    assert stream.getvalue().splitlines()[-1].startswith("round   7/100  7.00 MiB sent")
    assert stream.getvalue().count("round   7/100") == 1


def test_live_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    text = run(Terminal())
    assert "\x1b[?25l" in text and text.rstrip().endswith("\x1b[?25h"), "the cursor is hidden, then shown"
    assert "actor 3 [died]; went on\n" in text
    assert (
        "30/30" in text
        and "30.0% (all clients' own networks), 60.0% (participants)" in text
        and "31.0 MiB sent" in text
    )


def test_a_terminal_of_80_columns_shows_two_whole_lines_in_every_update(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    progress = make_display(30, 20, stream=stream)
    progress.open(CARD)
    for t in range(31):
        progress.log(t, values(t), [])
        progress.within(7, 10)  # a longer first line must not wrap the results
        progress.print("a notice")  # draws both lines again
    progress.close("finished", {})
    text = stream.getvalue()
    up = "\x1b[1A\x1b[2K"
    assert up in text and up + up not in text, "an update moves up from the second line to the first, never further"
    assert "…" not in text and "60.0% (participants)  31.0 MiB sent" in text.rsplit("30/30", 1)[1]


def test_a_live_line_counts_the_clients_of_a_round_until_all_are_done(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    progress = make_display(30, 20, stream=stream)
    progress.open(CARD)
    try:
        progress.within(3, 10)
        progress.print("drawn")
        assert "3/10 clients" in stream.getvalue()
        progress.within(10, 10)
        progress.print("again")  # a refresh that began before may still show them above this notice
        assert "clients" not in stream.getvalue().split("again", 1)[1]
    finally:
        progress.close("finished", {})


def test_a_resumed_run_does_not_count_its_start_as_a_round(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = make_display(10, 20, stream=stream)
    progress.open(CARD)
    for now[0], t in ((100.0, 6), (102.0, 7), (104.0, 8)):  # 100 seconds of start-up, then two a round
        progress.log(t, values(t), [])
    assert "left" not in stream.getvalue().splitlines()[1]
    assert stream.getvalue().splitlines()[-1].endswith("2.00 s/round  4 s left")


def test_a_round_to_go_is_never_told_to_take_no_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = make_display(4, 20, stream=stream)
    progress.open(CARD)
    for now[0], t in ((10.0, 1), (10.2, 2), (11.0, 3)):
        progress.log(t, values(t), [])
    assert stream.getvalue().splitlines()[-1].endswith("0.50 s/round  1 s left")


@pytest.mark.parametrize(
    ("last", "pace"),
    [(16, "1.00 s/round  14 s left"), (15, "1.00 s/round  15 s left"), (14, "10.9 s/round  2 min 54 s left")],
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


def test_the_remaining_time_is_in_minutes_above_59_seconds(monkeypatch):
    # Rounds of 20 s: 100 s and 40 s are left after 5 and 8 of 10.
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = make_display(10, 20, stream=stream)
    for t in range(9):
        now[0] += 20
        progress.log(t, {}, [])
    lines = stream.getvalue().splitlines()
    assert lines[5].endswith("1 min 40 s left") and lines[8].endswith("  40 s left")


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_terminals_that_cannot_move_the_cursor_get_plain_lines(monkeypatch, term):
    # rich writes no control sequences there either, but then it shows no line before the end.
    monkeypatch.setenv("TERM", term)
    text = run(Terminal())
    assert "\x1b" not in text and "\nround  1/30  accuracy 1.0%" in text


def test_a_quiet_run_prints_nothing():
    stream = io.StringIO()
    progress = make_display(1, 20, quiet=True, stream=stream)
    progress.open(CARD)
    progress.log(0, {}, [])
    progress.within(1, 2)
    progress.print("a notice")
    progress.close("finished", {})
    assert stream.getvalue() == ""


def test_live_lines_survive_ctrl_c(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = make_display(10, 20, stream=stream)
    with pytest.raises(KeyboardInterrupt):
        try:
            progress.open(CARD)
            progress.log(0, values(0), [])
            raise KeyboardInterrupt
        finally:
            progress.close("interrupted", {})
    assert "interrupted" in stream.getvalue() and stream.getvalue().rstrip().endswith("\x1b[?25h")


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
