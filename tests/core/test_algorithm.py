"""The interface of algorithms: the example in its docstring."""

from __future__ import annotations

import doctest

from raysim.core import algorithm


def test_the_example_of_the_docstring_runs():
    found = doctest.testmod(algorithm)
    assert found.attempted and not found.failed
