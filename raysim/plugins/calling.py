"""Calls of the user's own code. Its exceptions become one line with file and line number, and Python's traceback."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysim.common.errors import HookError, RaysimError
from raysim.common.text import cause
from raysim.plugins.own_code import active_paths

PACKAGE = Path(__file__).parents[1]
"""The folder of raysim's code."""


@contextmanager
def failing(sentence: str, key: str = "") -> Iterator[None]:
    """Convert exceptions inside a block that calls the user's code to a `HookError` that begins with this sentence.

    key: the key of the scenario that names the code.
    """
    try:
        yield
    except RaysimError:
        raise
    except Exception as error:
        raise hook_error(sentence, error, key) from error


def hook_error(sentence: str, error: BaseException, key: str = "") -> HookError:
    """Return the `HookError` for an exception of the user's code. Its arguments are those of `failing`."""
    text = f"{sentence}: {where(error)}"
    return HookError(f"{key}: {text}" if key else text, hook=sentence, trace=own_traceback(error))


def where(error: BaseException) -> str:
    """Return the cause of an error in the user's code, with file and line."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    # If the last line is raysim's or Python's importer's, the call failed before the user's code ran, for example by
    # wrong arguments.
    called = last.filename.startswith("<") or Path(last.filename).is_relative_to(PACKAGE)
    place = "" if called else f" ({Path(last.filename).name}, line {last.lineno})"
    return f"{cause(error)}{own_line(error) or place}"


def own_line(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, as in " (mine.py, line 8)"; "" if there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in active_paths()]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def own_traceback(error: BaseException) -> str:
    """Return Python's traceback of an exception, without raysim's lines before the call of the user's code."""
    if isinstance(error, SyntaxError):  # its text names the file and shows the line
        return "".join(traceback.format_exception_only(error))
    frames = error.__traceback__
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).is_relative_to(PACKAGE):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def whole_number(value: object) -> int | None:
    """Convert an integer of Python, NumPy or torch to `int`; None for any other value."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
