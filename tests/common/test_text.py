"""Texts of messages."""

from __future__ import annotations

from raysim.common.text import QUOTED, cause, cut, distinct, quoted

LONG = "x" * 10_000


def test_cut_keeps_both_ends() -> None:
    assert cut("x" * QUOTED) == "x" * QUOTED
    assert cut(f"a{LONG}b")[0] + cut(f"a{LONG}b")[-1] == "ab"
    assert len(cut(LONG)) == QUOTED


def test_duplicates_are_numbered() -> None:
    assert distinct(["fedgh", "fd", "fedgh", "fedgh"]) == ["fedgh", "fd", "fedgh-2", "fedgh-3"]


def test_quoted_values_and_exceptions_are_one_short_line() -> None:
    assert cause(KeyError()) == "KeyError"
    assert cause(ValueError("a\nb")) == "ValueError: a b"
    assert len(quoted(LONG)) == QUOTED
