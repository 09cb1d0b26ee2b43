"""Progress is plain where there is no terminal, live on a terminal, and leaves the terminal as it was."""

from __future__ import annotations

import io
from pathlib import Path

from raysim.common.results import RunCard
from raysim.results import progress as progress_module
from raysim.results.progress import Display

CARD = RunCard("quick", "r1", Path("/runs/quick/r1"), {}, {}, "digits", "s", "d", "p", 10, 20, "fedgh-s1", {})


def values(t):
    return {
        "accuracy/all": t / 100,
        "accuracy/participants": t / 50,
        "comm/up_bytes": 2**19,
        "comm/down_bytes": 2**19,
    }


def run(stream, rounds=30):
    progress = Display(rounds, 20, stream=stream)
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


def test_the_pace_is_that_of_the_last_ten_rounds(monkeypatch):
    # Rounds 0 to 5 take 100 s each, later ones 1 s. The last ten are rounds 5 to 14: (100 + 9 * 1) / 10.
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Display(30, 20, stream=stream)
    for t in range(15):
        now[0] += 100 if t < 6 else 1
        progress.log(t, {}, [])
    assert stream.getvalue().splitlines()[-1].endswith("10.9 s/round  2 min 54 s left")
