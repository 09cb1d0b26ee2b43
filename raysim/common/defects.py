"""Report of an unexpected exception, a defect of raysim: one sentence for the user, and a file with the traceback."""

from __future__ import annotations

import platform
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from raysim.common.text import cause, printable, redacted

EXIT_CODE = 70
"""The exit code of an internal error (`EX_SOFTWARE` in sysexits.h)."""


def report_defect(error: BaseException, words: Sequence[str]) -> str:
    """Write the traceback to a file that only its owner can read, and return the sentence to print.

    words: the command line. Passwords in addresses are removed, in the file too. If no file can be written, the
    traceback follows the sentence.
    """
    report = (
        f"raysim {version('raysim')}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: raysim {' '.join(words)}\n\n{''.join(traceback.format_exception(error))}"
    )
    problem = f"unexpected error: {redacted(printable(cause(error)))}. This is a defect of raysim: report it with the"
    try:
        # The file has mode 0600 and is kept.
        with tempfile.NamedTemporaryFile(
            "w", prefix="raysim-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(redacted(report))
    except OSError:
        return f"{problem} traceback below.\n{printable(redacted(report))}"
    return f"{problem} traceback in {file.name}."
