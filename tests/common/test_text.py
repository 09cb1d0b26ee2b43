"""What a message shows of a text that comes from elsewhere."""

from __future__ import annotations

import pytest

from raysim.common.errors import RunError, ScenarioError
from raysim.common.text import QUOTED, cause, cut, quoted, reflowed, sentence
from raysim.scenario.parse import parse_scenario

LONG = "x" * 10_000
WORDS = "ab " * 5000


@pytest.mark.parametrize("given", [LONG, f"'{WORDS}'", f'"{WORDS}"', f"in '{WORDS}': and {LONG}"])
def test_a_message_quotes_the_ends_of_a_long_text(given: str) -> None:
    told = str(RunError(f"begins: {given} given; allowed: less"))
    assert told.startswith("begins: ")
    assert told.endswith("; allowed: less")
    assert len(told) < 2 * QUOTED + 50


def test_an_apostrophe_is_no_quotation() -> None:
    text = f"a client's word and {'others ' * 40}of its users' own, don't cut"
    assert sentence(text) == text


def test_cut_keeps_both_ends_and_no_secret() -> None:
    assert cut("x" * QUOTED) == "x" * QUOTED
    assert cut(f"a{LONG}b")[0] + cut(f"a{LONG}b")[-1] == "ab"
    assert len(cut(LONG)) == QUOTED
    assert "secret" not in cut(f"https://user:secret@host/{LONG}")


def test_values_and_exceptions_that_have_no_text() -> None:
    class Nameless:
        def __repr__(self) -> str:
            raise SystemExit

    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert quoted(Nameless()) == "a Nameless"
    assert cause(WordlessError()) == "WordlessError: its text cannot be shown"
    assert cause(KeyError()) == "KeyError"
    assert len(cause(ValueError(WORDS))) < QUOTED + 20


@pytest.mark.parametrize(
    "item", [f"{WORDS}=1", f"a.{LONG}=1", f"name={LONG}", f"rounds={WORDS}", WORDS, f"name={{{WORDS}"]
)
def test_an_override_of_any_length_is_a_short_sentence(item: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario({"name": "x", "algorithm": {"name": "fedgh"}}, [item])
    assert len(str(caught.value)) < 5 * QUOTED


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
