"""A defect of raysim: one sentence, a file with the traceback, and an exit code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run


def test_is_one_sentence_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(3)

    monkeypatch.setattr("raysim.scenario.parse.parse_scenario", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = run(capfd, "launch", "x.yaml")
    assert (code, out) == (70, "")
    assert err.startswith("raysim: unexpected error: KeyError: 3") and err.count("\n") == 1
    (file,) = tmp_path.iterdir()
    assert str(file) in err
    text = file.read_text()
    assert "in fail\n    raise KeyError(3)" in text
    assert "command: raysim launch x.yaml" in text
