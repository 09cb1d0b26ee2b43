"""Fields of user-facing settings: their ranges, meanings and defaults, written once beside the field.

A settings class is a frozen dataclass; the string under a field is its meaning, and an annotation such as
`Positive` its range. The scenario loader, the JSON schema and `raysim describe` all read them from here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """Bounds of a number; `None` leaves a side open."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def __str__(self) -> str:
        names = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
        return " and ".join(
            f"{words} {number_text(getattr(self, name))}"
            for name, words in names.items()
            if getattr(self, name) is not None
        )


def number_text(value: float) -> str:
    """A whole number in full, another in short."""
    return str(value) if isinstance(value, int) else f"{value:g}"


Positive = Annotated[float, Range(gt=0)]
NonNegative = Annotated[float, Range(ge=0)]
Fraction = Annotated[float, Range(ge=0, le=1)]
Count = Annotated[int, Range(ge=1)]


@dataclass(frozen=True)
class FieldInfo:
    """One field of a settings class, as a user meets it."""

    name: str
    type: Any  # without the Range
    range: Range | None
    default: Any  # dataclasses.MISSING when the field is required
    doc: str

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if get_origin(self.type) is Literal:
            return ", ".join(str(arg) for arg in get_args(self.type))
        words: dict[Any, str] = {
            float: "a number",
            int: "a whole number",
            bool: "true or false",
            str: "text",
            NoneType: "null",
            list[int]: "a list of whole numbers",
            dict[str, int]: "a mapping of names to whole numbers",
        }
        members = get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)
        names = [words.get(member, str(member).replace("typing.", "")) for member in members]
        bounded = [f"{name} {self.range}" if self.range and name.endswith("number") else name for name in names]
        return " or ".join(bounded)


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """The string literal under each annotated field of a class, its bases included. Read from the source once."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # made in an interactive session: it has no source
            continue
        assert isinstance(tree, ast.ClassDef)
        docs |= docs_in(tree)
    return MappingProxyType(docs)


def docs_in(tree: ast.ClassDef) -> dict[str, str]:
    """The string literal under each annotated field of a class statement."""
    docs = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)):
            continue
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = inspect.cleandoc(text.value.value).replace("\n", " ")
    return docs


def settings_fields(cls: type) -> list[FieldInfo]:
    """Every field of a frozen dataclass of settings, in order."""
    hints = get_type_hints(cls, include_extras=True)
    docs = field_docs(cls)
    found = []
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found.append(field_info(field.name, hints[field.name], default, docs.get(field.name, "")))
    return found


def field_info(name: str, hint: Any, default: Any, doc: str) -> FieldInfo:
    """A field whose annotation may hold a `Range`."""
    bounds = None
    if get_origin(hint) is Annotated:
        hint, bounds = _unwrapped(hint)
    elif get_origin(hint) in (Union, UnionType):
        # A range may stand inside, as in `Positive | None`.
        members = [_unwrapped(member) for member in get_args(hint)]
        bounds = next((found for _, found in members if found is not None), None)
        hint = reduce(or_, [member for member, _ in members])
    return FieldInfo(name, hint, bounds, default, doc)


def _unwrapped(hint: Any) -> tuple[Any, Range | None]:
    """A type without `Annotated`, and the Range that came with it."""
    if get_origin(hint) is not Annotated:
        return hint, None
    inner, *extras = get_args(hint)
    return inner, next((extra for extra in extras if isinstance(extra, Range)), None)


def check_settings(settings: Any) -> None:
    """Raise `ValueError` naming the first field whose value is outside its range or choices."""
    for info in settings_fields(type(settings)):
        value = getattr(settings, info.name)
        is_choice = get_origin(info.type) is Literal
        if (is_choice and value not in get_args(info.type)) or (
            info.range is not None and value is not None and not info.range.holds(value)
        ):
            raise ValueError(f"{info.name}: {value!r} given; allowed: {info.allowed}")
