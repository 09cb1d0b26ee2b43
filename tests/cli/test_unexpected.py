"""A defect of raysim: one sentence, a file with the traceback, and an exit code of its own."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from tests.cli.command import run


class Own(BaseException):
    """Derived as a user's own exception may be."""


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("what \x1b[2J\nis this"), "ValueError: what  is this"),
        (KeyError(3), "KeyError: 3"),
        (MemoryError(), "MemoryError"),
        (RecursionError("x" * 5000), "RecursionError: x"),
        (Own("mine"), "Own: mine"),
    ],
)
def test_is_one_sentence_and_a_file(
    error: BaseException,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("raysim.scenario.parse.parse_scenario", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = run(capfd, "validate", "http://me:secret@host/x.yaml")
    assert (code, out) == (70, "")
    assert err.startswith(f"raysim: unexpected error: {shown}") and err.count("\n") == 1 and len(err) < 600
    (file,) = tmp_path.iterdir()
    assert f"report it with the traceback in {file}." in err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert text.startswith("raysim ") and "in fail\n    raise error" in text
    assert "command: raysim validate http://host/x.yaml" in text and "secret" not in text


def test_is_a_traceback_where_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("raysim.scenario.parse.parse_scenario", fail)
    with monkeypatch.context() as patch:  # pytest itself needs the folder to show the output
        patch.setattr("raysim.common.defects.tempfile.NamedTemporaryFile", refuse)
        code, _, err = run(capfd, "validate", "x.yaml")
    assert code == 70 and "in fail" in err
    assert re.match(r"raysim: unexpected error: ValueError: x\. This is a defect of raysim: report it with", err)
