"""What a run has to say is logged: shown by its display while it runs, and free for a program's own handlers."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import raysim
from raysim.common.logs import show_logs
from raysim.common.results import ClientRow, RunCard, Status
from tests.engine.scenarios import loaded

RAYSIM = logging.getLogger("raysim")

DIVERGES = ("rounds=1", "training.optimizer=adam", "training.momentum=0.9", "training.lr=1e30")
"""Settings of a run that has a warning before its round, and two in it."""

SAID = ["training.momentum", "round 1: all uploads", "round 1: the training loss"]
"""How the warnings of this run begin."""


class Kept(logging.Handler):
    """A program's own handler."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Says:
    """A tracker that ends the run."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.handlers: list[logging.Handler] = []

    def open(self, card: RunCard) -> None:
        self.handlers = list(RAYSIM.handlers)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        raise self.error

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        pass


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_the_display_shows_each_record_once_at_its_place(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    raysim.run(loaded(*DIVERGES))
    shown = lines(capfd)
    assert [line[:9] for line in shown if re.match(r"round ./", line)] == ["round 0/1", "round 1/1"]
    said = [line for line in shown if not line.startswith(("round 0/", "round 1/", "no GPU", "tiny: "))]
    assert all(line.startswith(text) for line, text in zip(said, SAID, strict=True)), said
    assert shown.index(said[2]) < next(n for n, line in enumerate(shown) if line.startswith("round 1/1"))


def test_a_quiet_run_prints_nothing_and_logs_all_the_same(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine, before = Kept(), list(RAYSIM.handlers)
    RAYSIM.addHandler(mine)
    try:
        raysim.run(loaded(*DIVERGES), quiet=True)
    finally:
        RAYSIM.removeHandler(mine)
    assert lines(capfd) == []
    warnings = [record.getMessage() for record in mine.records if record.levelno == logging.WARNING]
    assert all(one.startswith(said) for one, said in zip(warnings, SAID, strict=True)), warnings
    assert RAYSIM.handlers == before


def test_no_handler_is_left_however_a_run_ends(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, says = list(RAYSIM.handlers), Says(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        raysim.run(loaded("rounds=2"), trackers=[says])
    assert len(says.handlers) == len(before) + 1
    assert RAYSIM.handlers == before
    (folder,) = Path("runs/tiny").iterdir()
    shown = lines(capfd)
    assert f"resume with:  raysim resume {folder.absolute()}" in shown
    raysim.Run(folder).resume(quiet=True)
    assert RAYSIM.handlers == before


def test_records_below_a_logger_alone_are_shown() -> None:
    texts: list[str] = []
    with show_logs(texts.append, "raysim.study"):
        logging.getLogger("raysim.study.loop").warning("a cell: 100 %s")
        logging.getLogger("raysim.runs").warning("a run")
    assert texts == ["a cell: 100 %s"]
