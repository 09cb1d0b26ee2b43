"""Output of `list` and `describe`: names, methods, keys of scenarios, and columns of files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo
from rich.console import Console

from raysim.cli.options import KINDS
from raysim.cli.show import new_console, new_table
from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS, ClientRow
from raysim.common.suggestions import suggest
from raysim.common.text import expanded
from raysim.core.fields import field_docs, in_words, settings_fields
from raysim.data.specs import DATASETS, DatasetSpec
from raysim.models import MODELS, ModelSpec
from raysim.plugins.reading import read_own_code
from raysim.plugins.registry import Reference, algorithm_class, algorithm_names, named
from raysim.scenario.bundled import FOLDER, bundled_names
from raysim.scenario.schema import Data, Section, Settings
from raysim.scenario.sentences import NAMED, SECTIONS
from raysim.scenario.trackers import TRACKERS
from raysim.scenario.yaml_text import opening_comment, read_text
from raysim.study.measures import ALL_MEASURES, meaning_of

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm

FILES = {
    "rounds.parquet": {"round": "round, from 1; 0: before the first round", **METRICS},
    "clients.parquet": field_docs(ClientRow),
}
"""File -> column -> explanation."""

SWEEPS = ("sweep", "tune")
"""Names for which `describe` explains the keys of a sweep file."""

SYNONYMS = {"methods": "algorithms"}

READ_FROM_FILES = ("algorithms", "scenarios")
"""Kinds of names that are read from files, and only when they are shown."""


@dataclass(frozen=True)
class Entry:
    """A name and its meaning, as `raysim list` shows it."""

    name: str
    """the name, as users type it"""
    description: str
    """the meaning of the name"""
    facts: Mapping[str, str] = field(default_factory=dict)
    """for a method: year of its paper, architectures of its clients, messages; otherwise empty"""

    @property
    def text(self) -> str:
        """The description and, in a second line, the facts."""
        facts = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return f"{self.description}\n{facts}" if facts else self.description


def entries_of(what: str) -> dict[str, list[Entry]]:
    """Return kind -> entries, for one kind or its synonym, or for `all`."""
    named, kinds = _named(), list(KINDS) if what == "all" else [SYNONYMS.get(what, what)]
    return {kind: [_entry(kind, name, value) for name, value in named[kind].items()] for kind in kinds}


def show_list(entries: Mapping[str, Sequence[Entry]]) -> None:
    """Print entries with their descriptions. entries: kind -> entries."""
    for kind, of_kind in entries.items():
        title = kind.capitalize() if len(entries) > 1 else None
        _show_entries(new_console(), title, [(one.name, one.text) for one in of_kind])


def show_description(name: str) -> None:
    """Print the description of a name. Raises `ScenarioError` for an unknown name."""
    console, name = new_console(), SYNONYMS.get(name, name)
    kinds = [kind for kind, names in _named().items() if name in names]
    if "algorithms" in kinds or Reference.of(name) is not None:
        _show_algorithm(console, name)
        if "partitions" not in kinds:
            return
        console.print(f"\nThe partition {name}:")
    kind = next((kind for kind in kinds if kind not in READ_FROM_FILES), None)
    if kind is not None:
        _show_named(console, kind, name)
    elif (meaning := meaning_of(name)) is not None:  # a measure for any target accuracy, such as rounds_to_0.5
        console.print(meaning)
    elif tuple(name.split(".")) in NAMED:
        show_description(f"{name.rpartition('.')[2]}s")
    elif name in KINDS:
        console.print(f"{KINDS[name]} `raysim describe NAME` explains one of them.\n")
        show_list(entries_of(name))
    elif name in FILES:
        _show_entries(console, None, FILES[name].items(), "column")
    elif name in Settings.model_fields or name == "scenario":
        _show_section(console, name)
    elif name in _keys():
        section, _, key = name.partition(".")
        _show_keys(console, SECTIONS[section], [key])
    elif name in SWEEPS or "scenarios" in kinds or Path(name).suffix in (".yaml", ".yml"):
        _show_sweep_or_file(console, name)
    else:
        names = [each for of_kind in _named().values() for each in of_kind]
        known = [*names, *Settings.model_fields, *_keys(), *KINDS, *FILES, *SWEEPS]
        same = [key for key in _keys() if key.endswith(f".{name}")]
        hint = f"; did you mean {' or '.join(map(repr, same))}?" if same else suggest(name, known)
        raise ScenarioError(f"describe {name}: unknown name{hint} (`raysim list` shows all names)")


def _show_sweep_or_file(console: Console, name: str) -> None:
    from raysim.study.definition import ABOUT, KEYS, about_file

    if name in SWEEPS:
        console.print(f"{ABOUT[name]}\n")
        _show_entries(console, None, KEYS[name].items(), "key", "meaning")
        return
    comment, entries, how = about_file(name)
    console.print(f"{comment}\n" if comment else "")
    _show_entries(console, None, entries, "key", "value")
    console.print(how)


def _reflowed(doc: str | None) -> str:
    """Join the lines of each paragraph of a docstring, because the terminal wraps them. Lists keep their lines."""
    return re.sub(r"(?<=\S)\n(?![\s>*-]|\d+[.)] )", " ", inspect.cleandoc(doc or ""))


def _show_named(console: Console, kind: str, name: str) -> None:
    """Print the description of a name of a kind: docstring and fields of a class, summary and facts, or a text."""
    described = _named()[kind][name]
    if isinstance(described, type):
        console.print(f"{_reflowed(described.__doc__)}\n")
        _show_fields(console, described, re.findall("`(.*?)`", KINDS[kind])[0].replace("NAME", name))
        return
    console.print(described if isinstance(described, str) else described.summary)
    if isinstance(described, ModelSpec):
        console.print(f"Representation width: {described.native_dim}")
    elif isinstance(described, DatasetSpec):
        if described.train_size:
            sizes = f"{described.train_size:,} training and {described.test_size:,} test samples"
            console.print(f"{described.num_classes} classes; {sizes}: {described.input_spec}")
        for key in described.keys:
            console.print(f"data.{key}: {' '.join((Data.model_fields[key].description or '').split())}")


def _show_algorithm(console: Console, name: str) -> None:
    reference = named("algorithms", name)
    file = f"algorithms/{name}.py" if reference is None else reference.name
    if reference is not None and reference.is_file:
        own_code = read_own_code({expanded(reference.place): True})
        own_code.activate()
        file = ", ".join(own_code.paths)
    cls = algorithm_class(name if reference is None else reference.name)
    module = inspect.getmodule(cls)
    console.print(_reflowed((module and module.__doc__) or cls.__doc__), overflow="fold")
    based = "" if "paper" in vars(cls) else " of the method on which it is based"
    console.print(f"\nPaper{based}: {cls.paper}")
    console.print(f"File:  {file}")
    console.print(f"Architectures: {_architectures(cls)}")
    for way, messages in zip(("Down", "Up"), _messages(cls) or (), strict=False):
        for message in messages:
            doc = first_paragraph(message)
            console.print(f"{way}: {message_in_words(message)}" + (f" ({doc.removesuffix('.')})" if doc else ""))
    console.print()
    _show_fields(console, cls, f"algorithm: {{name: {name}}}")
    for profile, preset in cls.profiles.items():
        values = ", ".join(f"{field}: {_plain(value)}" for field, value in preset.items())
        console.print(f"profile: {profile}  ({values})")


def _named() -> dict[str, Mapping[str, Any]]:
    """Return kind -> name -> a class with fields, an object with a summary, a text, or None (`READ_FROM_FILES`)."""
    return {
        "algorithms": dict.fromkeys(algorithm_names()),
        "models": MODELS,
        "datasets": DATASETS,
        **{f"{key}s": classes for (_, key), classes in NAMED.items()},
        "trackers": TRACKERS,
        "scenarios": dict.fromkeys(bundled_names()),
        "metrics": METRICS,
        "measures": ALL_MEASURES,
    }


def _entry(kind: str, name: str, described: Any) -> Entry:
    if kind == "algorithms":
        return _algorithm(name)
    if kind == "scenarios":
        return Entry(name, _first_sentence(opening_comment(read_text(FOLDER / f"{name}.yaml"))))
    if isinstance(described, type):
        return Entry(name, first_paragraph(described))
    return Entry(name, described if isinstance(described, str) else described.summary)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?]) (?=[A-Z-])", " ".join(text.split()))[0]


def _show_entries(
    console: Console, title: str | None, entries: Iterable[tuple[str, str]], of: str = "name", what: str = "description"
) -> None:
    table = new_table(title, of, what)
    for name, text in entries:
        table.add_row(name, text)
    console.print(table)


def _algorithm(name: str) -> Entry:
    """Return a method's summary and facts, or the error in its file, because a user may still be writing it."""
    try:
        cls = algorithm_class(name)
    except ScenarioError as error:
        return Entry(name, str(error))
    years = re.findall(r"\b(?:19|20)\d\d\b", cls.paper.partition("http")[0])
    facts = {"year": years[-1] if years else "", "architectures": _architectures(cls), "messages": _travels(cls)}
    return Entry(name, first_paragraph(cls), {key: value for key, value in facts.items() if value})


def _show_fields(console: Console, cls: type, where: str) -> None:
    fields = settings_fields(cls)
    if not fields:
        console.print(f"It has no fields to set. In a scenario: {where}")
        return
    table = new_table(None, "field", "default", "allowed", "meaning")
    for one in fields:
        default = "required" if one.default is MISSING else _plain(one.default)
        table.add_row(one.name, default, in_words(one.hint), one.doc)
    console.print(table)


def _show_section(console: Console, name: str) -> None:
    section = Settings if name == "scenario" else section_of(Settings.model_fields[name], optional=True)
    if section is None:
        _show_keys(console, Settings, [name])
        return
    console.print(_reflowed(section.__doc__) + "\n")
    _show_keys(console, section, section.model_fields)


def _show_keys(console: Console, section: type[Section], keys: Iterable[str]) -> None:
    hints = get_type_hints(section, include_extras=True)
    table = new_table(None, "key", "default", "allowed", "meaning")
    for key in keys:
        field = section.model_fields[key]
        inner = section_of(field)
        may = in_words(hints[key]) if inner is None else f"see `raysim describe {key}`"
        meaning = field.description or (inspect.cleandoc(inner.__doc__ or "").split("\n\n")[0] if inner else "")
        table.add_row(key, default_of(field), may, meaning.replace("\n", " "))
    console.print(table)


def _keys() -> list[str]:
    """Return the keys in the sections of a scenario, such as `training.lr`."""
    return [f"{name}.{key}" for name, section in SECTIONS.items() for key in section.model_fields]


def section_of(field: FieldInfo, optional: bool = False) -> type[Section] | None:
    """Return the section that is a key's value; None if it is no section. optional: also accept `Section | None`."""
    kinds = (field.annotation, *(get_args(field.annotation) if optional else ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def default_of(field: FieldInfo) -> str:
    """Return a key's default in words."""
    if field.is_required():
        return "required"
    return "its defaults" if section_of(field) else _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)


Messages = tuple[type, ...]
"""The message classes in one direction."""


def _architectures(cls: type[AnyAlgorithm]) -> str:
    """Return whether clients may have different architectures, in words."""
    return "one for all clients" if cls.one_architecture else "may differ"


def _messages(cls: type[AnyAlgorithm]) -> tuple[Messages, Messages] | None:
    """Return the message classes (down, up) of `Algorithm[...]`; None without type arguments, or if one is `Any`."""
    for base in cls.__mro__:
        for made in vars(base).get("__orig_bases__", ()):
            if getattr(get_origin(made), "__name__", "") == "Algorithm":
                down, up = (_classes_in(argument) for argument in get_args(made)[:2])
                return None if Any in (*down, *up) else (down, up)
    return None


def _travels(cls: type[AnyAlgorithm]) -> str:
    """Return the messages in both directions, in words; "" if the class does not declare them."""
    if (messages := _messages(cls)) is None:
        return ""
    down, up = (" or ".join(map(message_in_words, classes)) for classes in messages)
    if down == up:
        return f"{down} down and up" if down else "no communication"
    return ", ".join(f"{words} {way}" for words, way in ((down, "down"), (up, "up")) if words)


def message_in_words(message: type) -> str:
    """Return the name of a message class as words, for example `class means` for `ClassMeans`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", message.__name__).lower()


def first_paragraph(cls: type) -> str:
    """Return the first paragraph of a class's docstring, in one line."""
    doc = cls.__doc__ or ""
    # If a class has no docstring, `dataclass` uses its signature as docstring.
    return "" if doc.startswith(f"{cls.__name__}(") else inspect.cleandoc(doc).split("\n\n")[0].replace("\n", " ")


def _classes_in(argument: Any) -> Messages:
    parts = get_args(argument) if isinstance(argument, UnionType) else (argument,)
    return tuple(part for part in parts if part not in (None, NoneType))
