"""Which choices of a parameter `make test` tries; `make test-large` tries all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The first `count` values as they are, and the others for `make test-large`: for slow tests of one mechanism."""
    params = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*param, marks=() if i < count else pytest.mark.large) for i, param in enumerate(params)]
