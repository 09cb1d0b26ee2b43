"""Texts of messages."""

from __future__ import annotations

import pytest

from raysim.common.text import QUOTED, cause, cut, distinct, quoted, reflowed

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


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("", ""),
        ("one line", "one line"),
        ("The first line of a text\nand the second.\n\nAnother paragraph,\nwrapped.",
         "The first line of a text and the second.\n\nAnother paragraph, wrapped."),
        ("Authors. Venue, year.\nA participant trains its network and sends it.",
         "Authors. Venue, year.\nA participant trains its network and sends it."),
        ("Authors of a paper with a long title. In: Venue, year.\nhttps://arxiv.org/abs/1\nA participant",
         "Authors of a paper with a long title. In: Venue, year. https://arxiv.org/abs/1\nA participant"),
        ("A sentence that is full.\nUnquestionably another.", "A sentence that is full. Unquestionably another."),
        ("Steps:\n- one\n- two\n  more\n>>> code()\n1. first", "Steps:\n- one\n- two\n  more\n>>> code()\n1. first"),
        ("a\n    indented = 1\nb\nc", "a\n    indented = 1\nb c"),
    ],
)  # fmt: skip
def test_a_docstring_is_wrapped_once(text: str, joined: str) -> None:
    assert reflowed(text) == joined
