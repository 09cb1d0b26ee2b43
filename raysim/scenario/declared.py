"""What a settings class declares, and what an algorithm's class declares, if possible without importing its file.

Importing an algorithm imports torch, which takes seconds; `raysim list` should not. An algorithm's file is read instead
if it was imported before: with the same text, the same `raysim.core` and the same versions of what it may import, and
said the same then. That is remembered in the cache folder. Any other file is imported, and all errors come from there.
"""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import hashlib
import inspect
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, get_origin

from raysim.common.folders import cache_root
from raysim.core import fields as field_types
from raysim.core.fields import FieldInfo, docs_in, settings_fields
from raysim.core.imports import LIBRARIES, imports_of, is_allowed
from raysim.scenario.registry import algorithm_class, algorithm_file

_NAMES = {**vars(collections.abc), **vars(typing), **vars(field_types)}
"""What the annotations of fields are made of."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """A settings class as a user meets it."""

    name: str
    doc: str
    file_doc: str
    fields: tuple[FieldInfo, ...]
    paper: str = ""  # this and what follows: see `Algorithm`
    profiles: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    scheduled: bool = False
    one_architecture: bool = False
    checks: bool = False  # whether it refuses more than its fields' ranges and choices do

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, in one line."""
        return self.doc.split("\n\n")[0].replace("\n", " ")


_FACTS = ("paper", "profiles", "scheduled", "one_architecture")
_CHECKS = ("check", "__post_init__")


def declared(name: str) -> Declaration:
    """What the algorithm of this name declares. Raises `ScenarioError` as `algorithm_class` does."""
    file, source = algorithm_file(name), None
    if file is not None and f"raysim.algorithms.{name}" not in sys.modules:
        with suppress(OSError):
            source = file.read_bytes()
    return (source and _read_once(name, source)) or _imported(name, source)


@cache
def declaration_of(cls: type) -> Declaration:
    """What a class declares, an algorithm's or another's."""
    module = inspect.getmodule(cls)
    facts = {fact: getattr(cls, fact) for fact in _FACTS if hasattr(cls, fact)}
    bases = [base for base in cls.__mro__ if base.__module__ != "raysim.core.algorithm"]
    return Declaration(
        cls.__name__,
        inspect.cleandoc(cls.__doc__ or ""),
        inspect.cleandoc((module and module.__doc__) or ""),
        tuple(settings_fields(cls)),
        **facts,
        checks=any(check in vars(base) for base in bases for check in _CHECKS),
    )


@cache
def _read_once(name: str, source: bytes) -> Declaration | None:
    try:
        known = _note(name).read_text() == _key(source)
    except (OSError, RuntimeError, UnicodeDecodeError):  # RuntimeError: there is no home folder
        return None
    return read(source) if known else None


def _imported(name: str, source: bytes | None) -> Declaration:
    found = declaration_of(algorithm_class(name))
    if source is not None and (literal := read(source)) is not None and vars(literal) == vars(found):
        with suppress(OSError, RuntimeError):  # then the next time is as slow as this one
            _note(name).parent.mkdir(parents=True, exist_ok=True)
            _note(name).write_text(_key(source))
    return found


def _note(name: str) -> Path:
    return cache_root() / "algorithms" / name


def _key(source: bytes) -> str:
    """Changes with everything that decides whether a file can be imported and what its class then says."""
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


def read(source: bytes) -> Declaration | None:
    """What the one algorithm in a file declares; None where that is not written out in plain literals."""
    try:
        tree = ast.parse(source)
        if not all(is_allowed(found.module) for found in imports_of(tree)):  # `_key` covers those alone
            return None
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        (cls,) = [node for node in classes if "Algorithm" in map(_base, node.bases)]
        docs, fields = docs_in(cls), []
        facts: dict[str, Any] = {}
        for node in cls.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            name, default = node.target.id, MISSING if node.value is None else ast.literal_eval(node.value)
            hint = eval(compile(ast.Expression(node.annotation), "annotation", "eval"), dict(_NAMES))
            if get_origin(hint) is ClassVar:
                facts[name] = default
            else:
                fields.append(FieldInfo(name, hint, default, docs.get(name, "")))
    except Exception:  # of any kind: the file is then imported, and that raises the error for the user
        return None
    return Declaration(
        cls.name,
        ast.get_docstring(cls) or "",
        ast.get_docstring(tree) or "",
        tuple(fields),
        **{fact: facts[fact] for fact in _FACTS if fact in facts},
        checks=any(isinstance(node, ast.FunctionDef) and node.name in _CHECKS for node in cls.body),
    )


def _base(node: ast.expr) -> str:
    """The name of a base class, without its type arguments."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
