"""Runs a command in this process."""

from __future__ import annotations

import pytest

from raysim.cli.main import main


def run(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command."""
    code = 0
    try:
        main(args)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capfd.readouterr()
    return code, out, err
