"""Declarations of settings classes and algorithms; those of algorithms are read without an import, if possible.

Importing an algorithm imports torch, which takes seconds; `raysim list` should not. The first call imports the file,
also parses it, and notes in the cache folder if both gave the same declaration. Later calls only parse the file, until
its text, `raysim.core` or a library version changes. Without such a note, the file is imported, which raises the errors
for the user. A user's own file is always parsed if possible, because parsing runs none of its code.
"""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import hashlib
import inspect
import re
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin

from raysim.common.errors import ScenarioError
from raysim.common.folders import cache_root
from raysim.common.modules import LIBRARIES, imports_of, is_allowed
from raysim.common.text import quoted
from raysim.core import fields as field_types
from raysim.core.fields import FieldInfo, docs_in, settings_fields
from raysim.plugins.own_code import OwnCode
from raysim.plugins.references import Reference
from raysim.plugins.registry import algorithm_class, algorithm_file

_NAMES = {**vars(collections.abc), **vars(typing), **vars(field_types)}
"""Names that annotations of fields may contain."""


@dataclass(frozen=True)
class MessageInfo:
    """The name and docstring of a message class."""

    name: str
    doc: str

    @property
    def words(self) -> str:
        """The class name in words, such as `class means` for `ClassMeans`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", self.name).lower()


Messages = tuple[MessageInfo, ...] | None
"""The message classes of one direction; empty: no messages; None: the class does not declare them."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """The documentation, fields and facts of a settings class, as shown to users."""

    name: str
    doc: str
    file_doc: str
    fields: tuple[FieldInfo, ...]
    paper: str = ""  # see `Algorithm` for this and the next four
    profiles: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    scheduled: bool = False
    one_architecture: bool = False
    public_data: bool = False
    checks: bool = False  # True: the class has a method `check` or `__post_init__`, which may refuse values
    down: Messages = None  # server -> client
    up: Messages = None  # client -> server

    def __post_init__(self) -> None:
        presets = self.profiles.values() if isinstance(self.profiles, Mapping) else [None]
        if not all(isinstance(preset, Mapping) for preset in presets):
            given = quoted(self.profiles)
            raise ScenarioError(f"{self.name}: profiles is {given}; it must map names to mappings of fields and values")

    @property
    def summary(self) -> str:
        """The first paragraph of the class's docstring, in one line."""
        return self.doc.split("\n\n")[0].replace("\n", " ")

    @property
    def year(self) -> str:
        """The year of the method's paper; empty if `paper` has no year before its address."""
        years = re.findall(r"\b(?:19|20)\d\d\b", self.paper.partition("http")[0])
        return years[-1] if years else ""

    @property
    def travels(self) -> str:
        """The messages of both directions, in words; empty if the class does not declare them."""
        if self.down is None or self.up is None:
            return ""
        down, up = (" or ".join(message.words for message in messages) for messages in (self.down, self.up))
        if not down and not up:
            return "no communication"
        if down == up:
            return f"{down} down and up"
        return ", ".join(f"{words} {way}" for words, way in ((down, "down"), (up, "up")) if words)


_FACTS = ("paper", "profiles", "scheduled", "one_architecture", "public_data")
_CHECKS = ("check", "__post_init__")


def declared(name: str, own_code: OwnCode | None = None) -> Declaration:
    """Return the declaration of the algorithm of this name. own_code: the user's own files, which may define it.

    Raises `ScenarioError` as `algorithm_class` does.
    """
    reference = Reference.of(name)
    if own_code is not None and reference is not None and reference.is_file:
        declaration = read(own_code.files[reference.place].text, reference.attribute)
        if declaration is None:
            own_code.activate()
        return declaration or declaration_of(algorithm_class(name))
    file, source = algorithm_file(name), None
    if file is not None and f"raysim.algorithms.{name}" not in sys.modules:
        with suppress(OSError):
            source = file.read_bytes()
    return (source and _read_once(name, source)) or _imported(name, source)


@cache
def declaration_of(cls: type) -> Declaration:
    """Return the declaration of a class, of an algorithm or of other settings."""
    module = inspect.getmodule(cls)
    facts = {fact: getattr(cls, fact) for fact in _FACTS if hasattr(cls, fact)}
    bases = [base for base in cls.__mro__ if base.__module__ != "raysim.core.algorithm"]
    down, up = _messages_of(cls)
    return Declaration(
        cls.__name__,
        inspect.cleandoc(cls.__doc__ or ""),
        inspect.cleandoc((module and module.__doc__) or ""),
        tuple(settings_fields(cls)),
        **facts,
        checks=any(check in vars(base) for base in bases for check in _CHECKS),
        down=down,
        up=up,
    )


def _messages_of(cls: type) -> tuple[Messages, Messages]:
    """Return the messages down and up, from the type arguments of the class's `Algorithm[...]`, own or inherited."""
    for base in cls.__mro__:
        for made in vars(base).get("__orig_bases__", ()):
            if getattr(get_origin(made), "__name__", "") == "Algorithm" and len(get_args(made)) == 3:
                down, up, _ = get_args(made)
                return _messages_in(down), _messages_in(up)
    return None, None


def _messages_in(argument: Any) -> Messages:
    if argument is None or argument is NoneType:
        return ()
    parts = get_args(argument) if isinstance(argument, UnionType) else (argument,)
    classes = [part for part in parts if part is not NoneType]
    if not all(dataclasses.is_dataclass(one) and isinstance(one, type) for one in classes):
        return None
    # `dataclass` sets the signature as the docstring of a class that has none.
    docs = [one.__doc__ or "" for one in classes]
    return tuple(
        MessageInfo(one.__name__, "" if doc.startswith(f"{one.__name__}(") else inspect.cleandoc(doc))
        for one, doc in zip(classes, docs, strict=True)
    )


@cache
def _read_once(name: str, source: bytes) -> Declaration | None:
    try:
        known = _note(name).read_text() == _key(source)
    except (OSError, RuntimeError, UnicodeDecodeError):  # RuntimeError: there is no home folder
        return None
    return read(source) if known and _is_covered(source) else None


def _imported(name: str, source: bytes | None) -> Declaration:
    imported = declaration_of(algorithm_class(name))
    if (
        source is not None
        and _is_covered(source)
        and (literal := read(source)) is not None
        and vars(literal) == vars(imported)
    ):
        with suppress(OSError, RuntimeError):  # without the note, the next call imports the file again
            _note(name).parent.mkdir(parents=True, exist_ok=True)
            _note(name).write_text(_key(source))
    return imported


def _note(name: str) -> Path:
    return cache_root() / "algorithms" / name


def _key(source: bytes) -> str:
    """Return a digest of everything that decides whether a file can be imported and what its class declares."""
    return hashlib.sha256(_surroundings() + source).hexdigest()


@cache
def _surroundings() -> bytes:
    sha = hashlib.sha256(sys.version.encode())
    for package in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            sha.update(f"{package} {metadata.version(package)}\n".encode())
    for path in sorted(Path(field_types.__file__).parent.rglob("*.py")):
        text = path.read_bytes()
        sha.update(f"{path.name} {len(text)}\n".encode() + text)
    return sha.digest()


def _is_covered(source: bytes) -> bool:
    """Whether a file can be parsed and imports only modules that `_key` covers."""
    with suppress(SyntaxError, ValueError):
        return all(is_allowed(statement.module) for statement in imports_of(ast.parse(source)))
    return False


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


def read(source: bytes, name: str = "") -> Declaration | None:
    """Return the declaration of the only algorithm in a file, or of the one called `name`, without running the file.

    None if there is not exactly one, or its declaration does not consist of plain literals.
    """
    try:
        tree = ast.parse(source)
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and name in ("", node.name)]
        (cls,) = [node for node in classes if {"Algorithm", "raysim.Algorithm"} & {*map(_base, node.bases)}]
        docs, fields = docs_in(cls), []
        down, up = _read_messages(tree, cls)
        facts: dict[str, Any] = {}
        for node in cls.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            name, default = node.target.id, MISSING if node.value is None else ast.literal_eval(node.value)
            hint = _hint(node.annotation)
            if get_origin(hint) is ClassVar:
                facts[name] = default
            else:
                fields.append(FieldInfo(name, hint, default, docs.get(name, "")))
    except Exception:  # whatever it is: the caller then imports the file, which raises the error for the user
        return None
    return Declaration(
        cls.name,
        ast.get_docstring(cls) or "",
        ast.get_docstring(tree) or "",
        tuple(fields),
        **{fact: facts[fact] for fact in _FACTS if fact in facts},
        checks=any(isinstance(node, ast.FunctionDef) and node.name in _CHECKS for node in cls.body),
        down=down,
        up=up,
    )


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


def _base(node: ast.expr) -> str:
    """The name of a base class, without its type arguments."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
