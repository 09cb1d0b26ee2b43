"""Fields of user-facing settings. Range, meaning and default of a field are declared once, at the field itself.

A settings class is a frozen dataclass; the string under a field is its meaning, and an annotation such as
`Positive` its range. The scenario loader, the JSON schema and `raysim describe` all read them from here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import operator
import textwrap
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval

_SIDES = {
    "gt": ("greater than", operator.gt),
    "ge": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "le": ("at most", operator.le),
}


class Range(Interval):
    """Bounds of a number: `gt`, `ge`, `lt` and `le`; `None` leaves a side open."""

    def holds(self, value: float) -> bool:
        """Return whether `value` is within the bounds."""
        return all(inside(value, bound) for _, inside, bound in self._bounds())

    def __str__(self) -> str:
        return " and ".join(f"{words} {bound}" for words, _, bound in self._bounds())

    def _bounds(self) -> list[tuple[str, Any, Any]]:
        return [(*side, bound) for name, side in _SIDES.items() if (bound := getattr(self, name)) is not None]


Positive = Annotated[float, Range(gt=0)]
NonNegative = Annotated[float, Range(ge=0)]
NonNegativeInt = Annotated[int, Range(ge=0)]
Fraction = Annotated[float, Range(ge=0, le=1)]
Count = Annotated[int, Range(ge=1)]


class CountsWarmup:
    """Marks a field that counts initial rounds in which the method only trains locally."""


WarmupRounds = Annotated[int, Range(ge=0), CountsWarmup]


@dataclass(frozen=True)
class FieldInfo:
    """Name, annotation, default and meaning of one field of a settings class."""

    name: str
    hint: Any  # annotation of the field
    default: Any  # `dataclasses.MISSING` if the field is required
    doc: str

    @property
    def counts_warmup(self) -> bool:
        """Whether the field is declared as `WarmupRounds`."""
        return get_origin(self.hint) is Annotated and CountsWarmup in get_args(self.hint)


_WORDS: Mapping[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    Any: "values",
}


def in_words(hint: Any) -> str:
    """Describe the values that an annotation allows; a text in `Annotated` replaces the description."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        text = next((extra for extra in args[1:] if isinstance(extra, str)), None)
        bounds = next((extra for extra in args[1:] if isinstance(extra, Range)), "")
        return text or f"{in_words(args[0])} {bounds}".rstrip()
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, args))
    if hint in (list, tuple):
        return "a list"
    if hint is dict:
        return "a mapping"
    if origin is list or (origin is tuple and args[-1:] == (Ellipsis,)):
        return f"a list, each {in_words(args[0])}" if args else "a list"
    if origin is tuple and args:
        return f"a list of {len(args)}: {', '.join(map(in_words, args))}"
    if origin is dict:
        return f"a mapping of names to {in_words(args[1])}" if args else "a mapping"
    if not isinstance(hint, Hashable):  # a file may contain any value as an annotation
        return str(hint)
    if hint not in _WORDS and isinstance(hint, type):  # a section of a scenario
        return f"a mapping of {', '.join(getattr(hint, 'model_fields', inspect.get_annotations(hint)))}"
    return _WORDS.get(hint, str(hint))


def field_docs(cls: type) -> Mapping[str, str]:
    """Return the string literal under each annotated field of a class and its bases, read from the source once."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _docs_of(base)
    return docs


@cache  # parsing a module to find a class takes 20 ms
def _docs_of(cls: type) -> Mapping[str, str]:
    """Return the string literal under each annotated field that a class itself has."""
    if not dataclasses.is_dataclass(cls):
        return {}
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # the source is missing, or was edited after the import
        return {}
    docs: dict[str, str] = {}
    statements: list[ast.stmt] = getattr(tree, "body", [])
    for field, text in pairwise(statements):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(doc))):
                docs[name] = inspect.cleandoc(doc).replace("\n", " ")
    return docs


def settings_fields(cls: type) -> list[FieldInfo]:
    """Every field of a frozen dataclass of settings, in order."""
    hints = get_type_hints(cls, include_extras=True)
    docs = field_docs(cls)
    infos = []
    for field in dataclasses.fields(cls):
        if not field.init:  # derived from other fields
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        infos.append(FieldInfo(field.name, hints[field.name], default, docs.get(field.name, "")))
    return infos


def check_settings(settings: Any) -> None:
    """Raise `ValueError` for the first field whose value is outside its range or choices."""
    hints = get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        if not field.init:  # derived from other fields, and not set yet
            continue
        value, hint = getattr(settings, field.name), hints[field.name]
        if not _fits(value, hint):
            raise ValueError(f"{field.name}: {value!r} given; allowed: {in_words(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is within the ranges and choices of an annotation; types are not checked."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in args
    if origin in (Union, UnionType):
        return value is None or any(_fits(value, arg) for arg in args if arg is not NoneType)
    if origin is Annotated:
        return all(extra.holds(value) for extra in args[1:] if isinstance(extra, Range))
    return True
