"""Read the declaration of an algorithm from the text of its file, without running the file.

A class may inherit from classes of its file, of the user's other files and of `raysim.algorithms`: their text is read
in the same way.
"""

from __future__ import annotations

import ast
import collections.abc
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, get_origin

from raysim.common.errors import ScenarioError
from raysim.common.text import cut
from raysim.core import fields as field_types
from raysim.core.fields import FieldInfo, docs_in
from raysim.plugins.registry import algorithm_file
from raysim.scenario.declaration import CHECKS, FACTS, Declaration, MessageInfo, Messages

_NAMES = {**vars(collections.abc), **vars(typing), **vars(field_types)}
"""Names that annotations of fields may contain."""

ROOT = {
    "Algorithm",
    "raysim.Algorithm",
    "raysim.core.Algorithm",
    "raysim.core.algorithm.Algorithm",
}
"""Full names of the class from which all algorithms inherit; the first one is a name that the file does not import."""

_EMPTY = {*ROOT, "abc.ABC", "ABC", "typing.Generic", "Generic", "typing.Protocol", "Protocol", "object"}
"""Full names of bases without fields and checks."""

Modules = Callable[[str], bytes | None]
"""Name of a module -> the text of its file; None: a module whose classes are not read."""


class UnreadableError(Exception):
    """The text of a file does not reveal the declaration. The message says why, and what to do."""

    def __init__(
        self, why: str, remedy: str = "`raysim validate SCENARIO --run-code` runs the file and shows its fields"
    ):
        super().__init__(f"{why}; {remedy}")


def bundled(module: str) -> bytes | None:
    """Return the text of a module of `raysim.algorithms`; None for any other module."""
    package, _, name = module.rpartition(".")
    file = algorithm_file(name) if package == "raysim.algorithms" else None
    return None if file is None else file.read_bytes()


def read(source: bytes, name: str = "", modules: Modules = bundled) -> Declaration:
    """Return the declaration of the only algorithm in a file, or of the one called `name`, without running the file.

    modules: files whose classes may be bases. Raises `UnreadableError` if there is not exactly one, if one of its bases
    is not found in these files, or if a field does not consist of plain literals, and `ScenarioError` for a mistake.
    """
    try:
        file = File(ast.parse(source), modules)
        named = [cls for cls in file.classes.values() if name in ("", cls.name)]
        found = [cls for cls in named if file.algorithm_bases(cls)]
        if len(found) != 1:
            raise _not_one(file, named, found, name)
        return _declaration(file, found[0])
    except (UnreadableError, ScenarioError):
        raise
    except Exception as error:  # whatever it is: the file is another person's text
        raise UnreadableError(f"its text is too unusual ({type(error).__name__})") from None


def _not_one(file: File, named: list[ast.ClassDef], found: list[ast.ClassDef], name: str) -> UnreadableError:
    """Return the error for a file with no or several algorithms. named: classes of the name; found: those that are."""
    if found:
        return UnreadableError(f"it contains {len(found)} algorithms", f"add the name of one: FILE:{found[0].name}")
    for cls in reversed(named):  # helpers come first
        for base in cls.bases:
            if file.base(base, cls) is None:  # nor is it `Algorithm`, since `cls` is no algorithm
                where = "in raysim.algorithms, in this file or in a file of the same folder"
                return UnreadableError(f"the base class {cut(_text(base))} of {cls.name} was not found {where}")
    called = f" called {cut(name)}" if name else ""
    return UnreadableError(f"it contains no algorithm{called}", "give a file with a subclass of raysim.Algorithm")


@dataclass(frozen=True, eq=False)
class File:
    """A parsed file, and the files that its classes may inherit from.

    Attributes:
        classes: the classes at the top of the file, by name.
        imported: local name -> full name, of everything that the top of the file imports.
    """

    tree: ast.Module
    modules: Modules
    others: dict[str, File | None] = field(default_factory=dict)  # module -> its file, once it is needed

    @cached_property
    def classes(self) -> Mapping[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def imported(self) -> Mapping[str, str]:
        names: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                # `import a.b` binds `a`, whose full name is `a`.
                names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return names

    def full_name(self, base: ast.expr) -> str:
        """Return the name of a base class, with the module that it is imported from."""
        first, dot, rest = _text(base).partition(".")
        return f"{self.imported.get(first, first)}{dot}{rest}"

    def find(self, name: str, of: ast.ClassDef | None = None) -> tuple[File, ast.ClassDef] | None:
        """Return the class of this name in the file or in a file that it is imported from; None: there is none.

        of: the class whose base it is. It may have the name of its base, which is then an imported one.
        """
        if (cls := self.classes.get(name)) is not None and cls is not of:
            return self, cls
        first, dot, rest = name.partition(".")
        module, _, attribute = f"{self.imported.get(first, first)}{dot}{rest}".rpartition(".")
        other = self._other(module)
        return None if other is None else other.find(attribute)

    def base(self, base: ast.expr, of: ast.ClassDef) -> tuple[File, ast.ClassDef] | None:
        """Return a base of a class of the file; None: it is `Algorithm`, or it is not found."""
        return self.find(_text(base), of)

    def algorithm_bases(self, cls: ast.ClassDef) -> list[ast.expr]:
        """Return the bases of a class that are `Algorithm` or inherit from it."""
        return [base for base in cls.bases if self._is_algorithm(base, cls)]

    def _is_algorithm(self, base: ast.expr, of: ast.ClassDef) -> bool:
        found = self.base(base, of)
        if found is None:
            return self.full_name(base) in ROOT
        return bool(found[0].algorithm_bases(found[1]))

    def _other(self, module: str) -> File | None:
        if module not in self.others:
            text = self.modules(module)
            self.others[module] = None if text is None else File(ast.parse(text), self.modules, self.others)
        return self.others[module]


def _declaration(file: File, cls: ast.ClassDef) -> Declaration:
    """Return the declaration of a class of a file, with what it inherits."""
    fields: dict[str, FieldInfo] = {}
    facts: dict[str, Any] = {}
    checks = _has_checks(cls)
    down, up = _read_messages(file.tree, cls)
    paper_of = ""
    bases = []
    for named in cls.bases:
        found = file.base(named, cls)
        if found is not None:
            bases.append(found)
        elif file.full_name(named) not in _EMPTY:
            text = cut(_text(named))
            raise UnreadableError(f"the base class {text} of {cls.name} was not found in text that is read")
    if sum(bool(other.algorithm_bases(base)) for other, base in bases) > 1:
        raise UnreadableError(f"{cls.name} inherits from several algorithms")
    for other, base in bases:
        if other.algorithm_bases(base):
            inherited = _declaration(other, base)
            fields = {info.name: info for info in inherited.fields}
            facts = {fact: getattr(inherited, fact) for fact in FACTS}
            checks, down, up = checks or inherited.checks, inherited.down, inherited.up
            paper_of = inherited.paper_of
        elif any(isinstance(node, ast.AnnAssign) for node in base.body):
            raise UnreadableError(f"{cls.name} inherits fields of {base.name}, which is no algorithm")
        else:
            checks = checks or _has_checks(base)
    docs = docs_in(cls)
    for name, value, annotation in _assignments(cls):
        default = MISSING if value is None else _literal(name, value)
        hint = ClassVar if annotation is None else _field_hint(name, annotation)
        if name in FACTS and default is not MISSING:
            facts[name] = default
            paper_of = cls.name if name == "paper" else paper_of
        if hint is ClassVar or get_origin(hint) is ClassVar:
            fields.pop(name, None)
        else:
            known = fields.get(name)
            fields[name] = FieldInfo(name, hint, default, docs.get(name, known.doc if known else ""))
    return Declaration(
        cls.name,
        ast.get_docstring(cls) or "",
        ast.get_docstring(file.tree) or "",
        tuple(fields.values()),
        **facts,
        checks=checks,
        down=down,
        up=up,
        paper_of=paper_of,
    )


def _has_checks(cls: ast.ClassDef) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name in CHECKS for node in cls.body)


def _assignments(cls: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Yield the name, value and annotation of each annotated name, and of each fact without an annotation."""
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value, node.annotation
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id in FACTS:
                    yield target.id, node.value, None


def _literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise UnreadableError(f"the value of {name} is computed ({cut(ast.unparse(value))})") from None


def _field_hint(name: str, annotation: ast.expr) -> Any:
    try:
        return _hint(annotation)
    except (ValueError, NameError):
        raise UnreadableError(f"the type of {name} is not plain ({cut(ast.unparse(annotation))})") from None


def _text(base: ast.expr) -> str:
    """Return a base class as it is written, without its type arguments."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


_BUILT_IN = {one.__name__: one for one in (int, float, str, bool, dict, list, tuple)}


def _hint(annotation: ast.expr) -> Any:
    """Return the type that an annotation names. Raises `ValueError` unless it consists of type names and literals.

    The file may be untrusted, so nothing is computed, and only `Range` is called. A string is plain text within
    `Literal` and after the type in `Annotated`; elsewhere it is an expression that Pydantic would evaluate.
    """
    if not _is_plain(annotation):
        raise ValueError(ast.unparse(annotation))
    code = compile(ast.Expression(annotation), "annotation", "eval")
    return eval(code, {**_NAMES, **_BUILT_IN, "__builtins__": {}})


def _is_plain(node: ast.expr, text: bool = False) -> bool:
    """Whether `_hint` may evaluate an expression. text: whether a string is plain text in this place."""
    match node:
        case ast.Constant():
            return text or not isinstance(node.value, str | bytes)
        case ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return True
        case ast.BinOp(op=ast.BitOr()):
            return _is_plain(node.left) and _is_plain(node.right)
        case ast.Tuple() | ast.List():
            return all(_is_plain(part, text) for part in node.elts)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *rest])):
            return _is_plain(first) and all(_is_plain(part, text=True) for part in rest)
        case ast.Subscript(value=ast.Name(id=name)):
            return _is_plain(node.slice, text=name == "Literal")
        case ast.Call(func=ast.Name(id="Range")):
            return all(_is_plain(part) for part in (*node.args, *(keyword.value for keyword in node.keywords)))
    return False


def _read_messages(tree: ast.Module, cls: ast.ClassDef) -> tuple[Messages, Messages]:
    """Return the messages down and up, like `_messages_of`, for a class statement in a file."""
    for node in cls.bases:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 3:
            docs = {**_core_messages(), **_class_docs(tree)}
            down, up = (_named_messages(part, docs) for part in node.slice.elts[:2])
            return down, up
    return None, None


def _named_messages(node: ast.expr, docs: Mapping[str, str]) -> Messages:
    match node:
        case ast.Constant(value=None):
            return ()
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            parts = [_named_messages(part, docs) for part in (left, right)]
            return None if None in parts else tuple(one for part in parts for one in part or ())
        case ast.Name(id=name) if name in docs:
            return (MessageInfo(name, docs[name]),)
    return None


def _class_docs(tree: ast.Module) -> dict[str, str]:
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.ClassDef)}


@cache
def _core_messages() -> Mapping[str, str]:
    """Return the message classes that several methods share, with their docstrings."""
    return _class_docs(ast.parse(Path(field_types.__file__).with_name("messages.py").read_bytes()))
