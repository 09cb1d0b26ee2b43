"""Calls of the user's own code: locate its errors, and check the numbers that it returns."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysim.common.errors import FAILURES, ScenarioError
from raysim.common.text import cause
from raysim.plugins.own_code import active_paths

PACKAGE = Path(__file__).parents[1]
"""The folder of raysim's code."""

BOOLEANS = ("bool", "torch.bool")
"""Names of the Boolean types of NumPy and torch."""


@contextmanager
def failing(sentence: str, key: str = "") -> Iterator[None]:
    """Convert exceptions of a block that calls the user's code to `ScenarioError`: this sentence and the cause."""
    try:
        yield
    except FAILURES as error:
        raise ScenarioError(f"{sentence}: {where(error)}", key=key) from error


def where(error: BaseException) -> str:
    """Return the cause of an error in the user's code, with its file and line."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    # If the last line is raysim's, the call itself failed, for example because of wrong arguments.
    called = Path(last.filename).is_relative_to(PACKAGE)
    return (
        f"{cause(error)}{own_line(error) or ('' if called else f' ({Path(last.filename).name}, line {last.lineno})')}"
    )


def own_line(error: BaseException) -> str:
    """Return the line of the user's code that an error passed last, such as " (mine.py, line 8)"; "" without any."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in active_paths()]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def whole_number(value: object) -> int | None:
    """Convert an integer from user code (Python, NumPy, torch) to `int`; None for a bool or any other value."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in BOOLEANS:
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except FAILURES:
        return None


def real_number(value: object) -> float | None:
    """Convert a number that user code returned to `float`; None for a bool, text or any other value."""
    if isinstance(value, bool | str | bytes) or str(getattr(value, "dtype", "")) in BOOLEANS:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except FAILURES:
        return None
