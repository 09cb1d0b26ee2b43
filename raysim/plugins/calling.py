"""Calls of the user's own code: the place of its errors, and the numbers that it returns."""

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
"""What NumPy and torch call the type of truth values."""


@contextmanager
def failing(sentence: str, key: str = "") -> Iterator[None]:
    """A block that calls the user's own code: its exception becomes a `ScenarioError`, this sentence and the cause."""
    try:
        yield
    except FAILURES as error:
        raise ScenarioError(f"{sentence}: {where(error)}", key=key) from error


def where(error: BaseException) -> str:
    """What is wrong with a file that was imported or called, and in which of its lines."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in active_paths()]
    last = (own or frames)[-1]
    return f"{cause(error)} ({Path(last.filename).name}, line {last.lineno})"


def whole_number(value: object) -> int | None:
    """A whole number that own code returned, NumPy's and torch's included, as Python's; None: it is none, or a bool."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in BOOLEANS:
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except FAILURES:
        return None


def real_number(value: object) -> float | None:
    """A number that own code returned, as a float; None: it is none, or text or a bool."""
    if isinstance(value, bool | str | bytes) or str(getattr(value, "dtype", "")) in BOOLEANS:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except FAILURES:
        return None
