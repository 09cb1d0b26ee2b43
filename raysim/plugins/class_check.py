"""Checks of an algorithm's class for mistakes that Python accepts, but that change the algorithm.

A hook with a misspelled name is never called, and a class without `@dataclass` has no settings. `raysim launch` and
`validate` refuse such a class, and so does the contract.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from raysim.core.algorithm import Algorithm, AnyAlgorithm

HOOKS: Mapping[str, list[str]] = {
    name: list(inspect.signature(value).parameters)[1:]
    for name, value in vars(Algorithm).items()
    if inspect.isfunction(value) and not name.startswith("_")
}
"""Method that the engine calls -> names of its arguments."""

ATTRIBUTES = (
    *inspect.get_annotations(Algorithm),
    *(name for name, value in vars(Algorithm).items() if isinstance(value, property)),
)
"""Class attributes and properties, besides fields, with which an algorithm declares facts about itself."""

RESERVED = {"name", "profile"}
"""Keys of the section `algorithm` that are not fields."""


def class_mistake(cls: type[AnyAlgorithm]) -> str | None:
    """Return one sentence with the first mistake in an algorithm's class and its remedy; None if there is none."""
    return next(_mistakes(cls), None)


def _mistakes(cls: type[AnyAlgorithm]) -> Iterator[str]:
    fields = {field.name for field in dataclasses.fields(cls)}
    for base in cls.__mro__:
        if not issubclass(base, Algorithm) or base is Algorithm:
            continue
        for name, value in vars(base).items():
            if name in HOOKS:
                yield from _of_hook(name, value)
            elif name not in ATTRIBUTES and not name.startswith("_") and name not in fields:
                yield from _of_name(name)
    for name in fields & RESERVED:
        yield f"the field `{name}` has the name of another key of the section `algorithm`; rename the field"
    if "__dataclass_fields__" not in vars(cls):
        yield (
            f"the class {cls.__name__} is not decorated with @dataclass, so its attributes are not settings; put "
            "@dataclass(frozen=True) above the class"
        )


def _of_hook(name: str, value: Any) -> Iterator[str]:
    """Yield a sentence if a hook cannot be called with its arguments, or takes them in another order."""
    expected = [*([] if isinstance(value, staticmethod) else ["self"]), *HOOKS[name]]
    function = inspect.unwrap(getattr(value, "__func__", value))
    if not inspect.isfunction(function):
        return
    signature = inspect.signature(function)
    names = list(signature.parameters)
    try:
        signature.bind(*expected)
        fits = names == expected or sorted(names) != sorted(expected)
    except TypeError:
        fits = False
    if not fits:
        taken = ", ".join(map(str, signature.parameters.values()))
        yield (
            f"the hook `{name}` takes ({taken}), but raysim calls it with ({', '.join(HOOKS[name])}); write "
            f"def {name}({', '.join(expected)})"
        )


def _of_name(name: str) -> Iterator[str]:
    """Yield a sentence if the name of a class member resembles that of a hook or of a declared property."""
    for near in difflib.get_close_matches(name, [*HOOKS, *ATTRIBUTES], n=1, cutoff=0.85):
        yield (
            f"raysim never uses `{name}`; did you mean `{near}`? If it is a helper, begin its name with an underscore"
        )
