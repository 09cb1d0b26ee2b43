"""Report of an unexpected exception, a defect of raysim: one sentence for the user, and a file with the traceback."""

from __future__ import annotations

import platform
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from raysim.common.text import cause

EXIT_CODE = 70
"""The exit code of an internal error (`EX_SOFTWARE` in sysexits.h)."""


def report_defect(error: BaseException, words: Sequence[str]) -> str:
    """Write the traceback to a file that only its owner can read, and return the sentence to print.

    words: the command line.
    """
    report = (
        f"raysim {version('raysim')}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: raysim {' '.join(words)}\n\n{''.join(traceback.format_exception(error))}"
    )
    # The file has mode 0600 and is kept.
    with tempfile.NamedTemporaryFile("w", prefix="raysim-error-", suffix=".txt", delete=False) as file:
        file.write(report)
    problem = f"unexpected error: {cause(error)}. This is a defect of raysim: report it with the"
    return f"{problem} traceback in {file.name}."
