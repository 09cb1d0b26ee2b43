"""The tables of the page on the keys of scenarios and sweep files, from the same declarations as `raysim describe`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_type_hints

from raysim.cli.description import default_of, section_of
from raysim.core.fields import in_words
from raysim.scenario.schema import Section, Settings
from raysim.study.definition import KEYS


def markdown() -> str:
    """Return a heading and a table for each section, also for sections within sections, and for sweep files."""
    lines = [line for name, section in _sections("scenario", Settings) for line in _table(name, section)]
    for name, meanings in KEYS.items():
        lines += ["", f"## {name}", "", "| key | meaning |", "| --- | --- |"]
        lines += [f"| `{key}` | {_cell(meaning)} |" for key, meaning in meanings.items()]
    return "\n".join(lines)


def _sections(name: str, section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    yield name, section
    for key, field in section.model_fields.items():
        inner = section_of(field, optional=True)
        if inner is not None:
            yield from _sections(key, inner)


def _table(name: str, section: type[Section]) -> Iterator[str]:
    yield from ("", f"## {name}", "", inspect.cleandoc(section.__doc__ or ""), "")
    yield "| key | default | allowed | meaning |"
    yield "| --- | --- | --- | --- |"
    hints = get_type_hints(section, include_extras=True)
    for key, field in section.model_fields.items():
        inner = section_of(field, optional=True)
        allowed = in_words(hints[key]) if inner is None else f"see [{key}](#{key})"
        meaning = field.description or (inspect.cleandoc(inner.__doc__ or "").split("\n\n")[0] if inner else "")
        yield f"| `{key}` | {_cell(default_of(field))} | {_cell(allowed)} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("*", "\\*").replace("<", "\\<")
