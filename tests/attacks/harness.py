"""Run mutated input through the command line and check what it does: the part that all attacks share."""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from raysim.cli.main import main
from raysim.common.text import printable

MEMORY = 4 << 30
"""Bytes by which this process may grow within `limited`."""

SLOWEST_S = 60
"""Seconds of a processor that a mutant may take."""

TIME_S = 300
"""How long a mutant may hang, in seconds."""


@dataclass
class Outcome:
    """What came of the mutants."""

    codes: Counter[int] = field(default_factory=Counter)  # exit codes
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0  # of the processor, for a mutant; without the first, which imports
    grown_mib: float = 0.0  # of this process, at most; likewise


Attack = Callable[[int, Path, Outcome], None]
"""What is done with a mutant: its number, a folder of its own, where to count what came of it."""


def attack(count: int, one: Attack, places: Path, first: int = 0) -> Outcome:
    """Do `one` with `count` mutants, each in a folder of its own below `places`."""
    outcome, before = Outcome(), 0
    for number in range(first, first + count):
        root = places / f"mutant-{number}"
        (root / "here").mkdir(parents=True)
        _make_victims(root)
        began = time.process_time()
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(TIME_S)
        try:
            one(number, root, outcome)
        except BaseException:
            outcome.failures.append(f"mutant {number}: {traceback.format_exc()}")
        finally:
            signal.alarm(0)
        if number == first:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            outcome.slowest_s = max(outcome.slowest_s, time.process_time() - began)
        shutil.rmtree(root)
    outcome.grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return outcome


@contextmanager
def limited() -> Iterator[None]:
    """Let this process allocate so much more than it has, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _too_long(*rest: object) -> None:
    raise AssertionError(f"not done after {TIME_S} s")


def _make_victims(root: Path) -> None:
    """What an attacker would like to change."""
    import sqlite3

    victim = root / "victim"
    (victim / "folder").mkdir(parents=True)
    for name in ("thesis.tex", "folder/key", "x", "r1"):
        (victim / name).write_text(name)
    with sqlite3.connect(victim / "cookies.db") as database:
        database.execute("CREATE TABLE cookies (name TEXT)")
    database.close()


def snapshot(root: Path, leave: Path) -> dict[str, object]:
    """Everything below `root` but what is in `leave`."""
    found: dict[str, object] = {}
    for where, folders, files in os.walk(root):
        folders[:] = [name for name in folders if Path(where, name) != leave]
        for path in (Path(where, name) for name in (*folders, *files)):
            facts = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (facts.st_mode, facts.st_ino, data if path.is_file() else None)
    return found


def run_command(outcome: Outcome, label: str, *words: str, shown: re.Pattern[str] | None = None) -> None:
    """Run a command; what it says must be for people. shown: the sentence that may follow a traceback."""
    out = io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(out):
            main(list(words))
    except SystemExit as ended:
        code = ended.code or 0
    told = out.getvalue()
    outcome.codes[code] += 1
    traced = "Traceback (most recent call last)" in told
    if code not in (0, 1, 2) or (traced and (code != 1 or shown is None or not shown.search(told))):
        raise AssertionError(f"{label}: exit code {code!r}: {told[:500]}")
    if printable(told) != told:
        raise AssertionError(f"{label}: not fit for a terminal: {told[:500]!r}")


def values(root: Path) -> list[Any]:
    """What takes the place of a name, a number, or anything."""
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    return [
        "../../victim/x", "../victim", f"{root}/victim", f"{root}/victim/x", f"{root}/victim/folder", "..", ".", "",
        "/", "a/b", "a\0b", "\x1b[2J", "\x1b]0;x\x07", "\ud800", "\u202e", "é", "x" * 5000, "a\nb", "a\r", "nan",
        "checkpoints",
        None, True, False, 0, 1, -1, 7, 3.5, 1e308, 10**40, float("nan"), float("inf"), [], {}, [[]], {"a": 1}, deep,
        ["x", "../x"], {"\x1b": "\x1b"}, f"sqlite:///{root}/victim/cookies.db", f"sqlite:///{root}/victim/thesis.tex",
        f"sqlite:///{root}/victim/new.db", f"file://{root}/victim", "http://127.0.0.1:9", "http://u:p@127.0.0.1:9",
        f"{root}/victim/folder/20261121-101500-ab12", "s3://x/../y", "memory://x",
    ]  # fmt: skip


def report(outcome: Outcome) -> Iterator[str]:
    yield f"exit codes {dict(sorted(outcome.codes.items()))}, {len(outcome.failures)} failures"
    yield f"at most {outcome.slowest_s:.1f} s of a processor each, memory grew by {outcome.grown_mib:.0f} MiB"
    yield from outcome.failures[:10]
