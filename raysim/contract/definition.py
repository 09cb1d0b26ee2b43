"""Checks of an algorithm's class before it runs, for mistakes that Python accepts silently.

With such a mistake a hook is never called, or a field never set, and the method silently becomes another one, most
often plain local training. `raysim launch` and `validate` refuse such a class, and so does the contract's clause
`defined`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from raysim.core.algorithm import Algorithm, AnyAlgorithm, overrides

HOOKS: Mapping[str, list[str]] = {
    name: list(inspect.signature(value).parameters)[1:]
    for name, value in vars(Algorithm).items()
    if inspect.isfunction(value) and not name.startswith("_")
}
"""The methods that the engine calls -> the names of their arguments."""

ATTRIBUTES = (
    *inspect.get_annotations(Algorithm),
    *(name for name, value in vars(Algorithm).items() if isinstance(value, property)),
)
"""Class attributes and properties by which an algorithm declares its properties, besides its fields."""

RESERVED = {"name", "profile"}
"""Keys of the section `algorithm` that are no fields."""

RETURNED = {
    "client_model": "the network",
    "client_register": "the message",
    "server_start": "the initial value of server.state",
    "server_send": "the message",
    "exposed": "an UpdateOf, an OutputOf or an Unexposed",
}
"""Hooks that are useless without a return value -> what they must return."""


class Slip(NamedTuple):
    """A mistake in a class, and its remedy."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


@cache
def first_slip(cls: type[AnyAlgorithm]) -> Slip | None:
    """Return the first mistake in an algorithm's class, or None."""
    return next(_slips(cls), None)


def algorithm_bases(cls: type) -> list[type]:
    """Return the class and its bases that are algorithms, nearest first."""
    return [base for base in cls.__mro__ if issubclass(base, Algorithm) and base is not Algorithm]


def _slips(cls: type[AnyAlgorithm]) -> Iterator[Slip]:
    bases = algorithm_bases(cls)
    used = _names_used(bases)
    for base in bases:
        for name, value in vars(base).items():
            if name in HOOKS:
                yield from _of_hook(name, value)
            elif not name.startswith("__"):
                yield from _of_name(base, name, value, used)
        yield from _of_source(base)
    yield from _of_pairs(cls)
    for name in getattr(cls, "__dataclass_fields__", {}).keys() & RESERVED:
        yield Slip(f"the field `{name}` has the name of another key of the section `algorithm`", "rename the field")
    if "__dataclass_fields__" not in vars(cls):
        yield Slip(
            f"the class {cls.__name__} is not decorated with @dataclass, so its attributes are not settings",
            "put @dataclass(frozen=True) above the class",
        )


def _of_hook(name: str, value: Any) -> Iterator[Slip]:
    arguments = ", ".join(HOOKS[name])
    if isinstance(value, classmethod):
        yield Slip(
            f"the hook `{name}` is a classmethod, which cannot read the settings of the algorithm",
            f"write def {name}(self, {arguments}) without @classmethod",
        )
        return
    function = inspect.unwrap(value.__func__ if isinstance(value, staticmethod) else value)
    if not inspect.isroutine(function):
        if isinstance(value, property | cached_property) or not (callable(value) or hasattr(value, "__get__")):
            yield Slip(
                f"the hook `{name}` has the type {type(value).__name__}, but must be a method",
                f"write def {name}(self, {arguments})",
            )
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield Slip(f"raysim does not await the hook `{name}`, so it never runs", "write def instead of async def")
    elif inspect.isgeneratorfunction(function):
        yield Slip(f"the hook `{name}` contains `yield`, so its body never runs", "write return instead of yield")
    signature = inspect.signature(function)
    taken = [str(parameter) for parameter in signature.parameters.values()]
    expected = [*([] if isinstance(value, staticmethod) else ["self"]), *HOOKS[name]]
    names = list(signature.parameters)
    try:
        signature.bind(*expected)
    except TypeError:
        fits = False
    else:
        fits = names == expected or sorted(names) != sorted(expected)  # the same names in another order are a slip
    if not fits:
        text = f"the hook `{name}` takes ({', '.join(taken)}), but raysim calls it with ({', '.join(HOOKS[name])})"
        yield Slip(text, f"write def {name}({', '.join(expected)})")


def _of_name(base: type, name: str, value: Any, used: Iterable[str]) -> Iterator[Slip]:
    """Yield the mistakes of a class member that is not a hook."""
    if name in ATTRIBUTES:
        if inspect.isroutine(value):
            yield Slip(
                f"`{name}` is a method without @property, so raysim always reads it as true",
                "put @property above the method",
            )
    elif inspect.isroutine(value) or isinstance(value, property | cached_property | classmethod | staticmethod):
        if name in used:
            return  # a helper
        if near := _near(name, [*HOOKS, *ATTRIBUTES]):
            yield Slip(f"raysim never calls the method `{name}`", f"did you mean `{near}`?")
        elif name.startswith(("client_", "server_")):
            yield Slip(
                f"raysim never calls the method `{name}`, because there is no hook of this name",
                f"use one of the hooks {', '.join(HOOKS)}",
            )
    elif name in inspect.get_annotations(base):
        field = name in {field.name for field in dataclasses.fields(base)}
        if not field and name not in used and (near := _near(name, ATTRIBUTES)):
            yield Slip(f"raysim never reads the attribute `{name}`", f"did you mean `{near}`?")
    elif name[0].islower() and not inspect.isclass(value):  # constants and types have capitals
        shown = " ".join(repr(value).split())
        shown = shown if len(shown) <= 40 else f"{shown[:39]}…"
        kind = type(value).__name__ if isinstance(value, bool | int | float | str) else "ClassVar"
        near = _near(name, ATTRIBUTES)
        yield Slip(
            f"the attribute `{name} = {shown}` has no type annotation, so it is not a setting",
            f"did you mean `{near}`?" if near else f"write {name}: {kind} = {shown}",
        )


def _of_pairs(cls: type[AnyAlgorithm]) -> Iterator[Slip]:
    """Yield the mistakes of hooks that need a return value or another hook."""
    for name, what in RETURNED.items():
        if overrides(cls, name) and _returns_nothing(getattr(cls, name)):
            yield Slip(f"the hook `{name}` never returns a value", f"return {what}")
    if overrides(cls, "server_update") and _returns_nothing(cls.client_update):
        yield Slip(
            "the class overrides server_update, but client_update never returns a message to upload",
            "return a message from client_update",
        )
    for name, needs, because in (
        ("client_receive", "server_send", "clients never receive a message"),
        ("client_register", "server_start", "no hook reads the registrations"),
    ):
        if overrides(cls, name) and not overrides(cls, needs):
            yield Slip(f"the class overrides {name} but not {needs}, so {because}", f"override {needs} as well")


def _of_source(base: type) -> Iterator[Slip]:
    """Yield the mistakes of misplaced hooks: outside the class, inside another method, or twice in the class."""
    tree = source_tree(base)
    hooks = {name for name in HOOKS if name != "check"}
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name in hooks and node.name not in vars(base):
            text = f"the hook `{node.name}` in line {node.lineno} is defined outside the class {base.__name__}"
            yield Slip(text, "indent it into the class")
        if not isinstance(node, ast.ClassDef) or node.name != base.__name__:
            continue
        seen: dict[str, int] = {}
        for method in node.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for inner in ast.walk(method):
                if isinstance(inner, ast.FunctionDef) and inner is not method and inner.name in hooks:
                    text = f"the hook `{inner.name}` in line {inner.lineno} is defined inside `{method.name}`"
                    yield Slip(text, "indent it like the other methods of the class")
            if method.name in seen and method.name in HOOKS:
                lines = f"in lines {seen[method.name]} and {method.lineno}"
                yield Slip(
                    f"the hook `{method.name}` is defined twice, {lines}, and Python ignores the first definition",
                    "remove one of the definitions",
                )
            seen[method.name] = method.lineno


def _near(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles a name most, or None."""
    words = {one.replace("_", ""): one for one in known}
    nearest = difflib.get_close_matches(name.lower().replace("_", ""), words, n=1, cutoff=0.85)
    return words[nearest[0]] if nearest else None


def _names_used(bases: Iterable[type]) -> set[str]:
    """Return every name that the files of these classes read, or contain as a string."""
    names: set[str] = set()
    for tree in filter(None, map(source_tree, bases)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


def source_tree(cls: type) -> ast.Module | None:
    """Return the parsed file of a class; None if it has no readable file."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    try:
        return ast.parse(Path(file).read_bytes()) if file else None
    except (OSError, SyntaxError, ValueError):
        return None


def _returns_nothing(function: Any) -> bool:
    """Return whether a method never returns a value. An explicit `return None` counts as intended."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    if not isinstance(tree, ast.FunctionDef):
        return False
    if isinstance(tree.body[-1], ast.Raise):
        return False
    rest: list[ast.AST] = list(tree.body)
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
            return False
        rest += ast.iter_child_nodes(node)
    return True
