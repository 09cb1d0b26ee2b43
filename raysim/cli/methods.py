"""Facts about a method for `raysim list` and `raysim describe`, read from its class."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import cleandoc, getmodule
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm

Messages = tuple[type, ...]
"""The message classes in one direction."""


@dataclass(frozen=True)
class Method:
    """A method, described by its class."""

    cls: type[AnyAlgorithm]

    @property
    def doc(self) -> str:
        """The docstring of the method's file or, without one, of its class."""
        module = getmodule(self.cls)
        return cleandoc((module and module.__doc__) or self.cls.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first paragraph of the class's docstring, in one line."""
        return first_paragraph(self.cls)

    @property
    def year(self) -> str:
        """The year of the method's paper; "" if `paper` has no year before its address."""
        years = re.findall(r"\b(?:19|20)\d\d\b", self.cls.paper.partition("http")[0])
        return years[-1] if years else ""

    @property
    def paper_of(self) -> str:
        """The class with the attribute `paper`: this class, or a base class."""
        return next((base.__name__ for base in self.cls.__mro__ if "paper" in vars(base)), "")

    @property
    def architectures(self) -> str:
        """Whether clients may have different architectures, in words."""
        return "one for all clients" if self.cls.one_architecture else "may differ"

    @property
    def messages(self) -> tuple[Messages, Messages] | None:
        """The message classes (down, up) in the type arguments of `Algorithm[...]`; None if these are no classes."""
        for base in self.cls.__mro__:
            for made in vars(base).get("__orig_bases__", ()):
                if getattr(get_origin(made), "__name__", "") == "Algorithm":
                    down, up = (_classes_in(argument) for argument in get_args(made)[:2])
                    return None if Any in (*down, *up) else (down, up)
        return None

    @property
    def travels(self) -> str:
        """The messages in both directions, in words; "" if the class does not declare them."""
        if self.messages is None:
            return ""
        down, up = (" or ".join(map(in_words, classes)) for classes in self.messages)
        if not down and not up:
            return "no communication"
        if down == up:
            return f"{down} down and up"
        return ", ".join(f"{words} {way}" for words, way in ((down, "down"), (up, "up")) if words)


def in_words(message: type) -> str:
    """Return the name of a message class as words, for example `class means` for `ClassMeans`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", message.__name__).lower()


def first_paragraph(cls: type) -> str:
    """Return the first paragraph of a class's docstring, in one line."""
    doc = cls.__doc__ or ""
    # If a class has no docstring, `dataclass` uses its signature as docstring.
    return "" if doc.startswith(f"{cls.__name__}(") else cleandoc(doc).split("\n\n")[0].replace("\n", " ")


def _classes_in(argument: Any) -> Messages:
    parts = get_args(argument) if isinstance(argument, UnionType) else (argument,)
    return tuple(part for part in parts if part not in (None, NoneType))
