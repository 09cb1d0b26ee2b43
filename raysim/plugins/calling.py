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
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in active_paths()]
    last = (own or frames)[-1]
    return f"{cause(error)} ({Path(last.filename).name}, line {last.lineno})"


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
