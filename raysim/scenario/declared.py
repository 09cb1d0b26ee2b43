"""Declarations of settings classes and algorithms; those of algorithms are read without an import, if possible.

Importing an algorithm imports torch, which takes seconds; `raysim list` should not. The first call imports the file,
also parses it, and notes in the cache folder if both gave the same declaration. Later calls only parse the file, until
its text, `raysim.core` or a library version changes. Without such a note, the file is imported, which raises the errors
for the user. A user's own file is always parsed if possible, because parsing runs none of its code.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from raysim.common.folders import cache_root
from raysim.common.modules import LIBRARIES, imports_of, is_allowed
from raysim.core import fields as field_types
from raysim.core.fields import settings_fields
from raysim.plugins.own_code import OwnCode
from raysim.plugins.references import Reference
from raysim.plugins.registry import algorithm_class, algorithm_file
from raysim.scenario.declaration import CHECKS, FACTS, Declaration, MessageInfo, Messages
from raysim.scenario.source import UnreadableError, bundled, read


def declared(name: str, own_code: OwnCode | None = None) -> Declaration:
    """Return the declaration of the algorithm of this name. own_code: the user's own files, which may define it.

    Raises `ScenarioError` as `algorithm_class` does.
    """
    reference = Reference.of(name)
    if own_code is not None and reference is not None and reference.is_file:
        try:
            return read_own(reference, own_code)
        except UnreadableError:
            own_code.activate()
            return declaration_of(algorithm_class(name))
    file, source = algorithm_file(name), None
    if file is not None and f"raysim.algorithms.{name}" not in sys.modules:
        with suppress(OSError):
            source = file.read_bytes()
    return (source and _read_once(name, source)) or _imported(name, source)


def read_own(reference: Reference, own_code: OwnCode) -> Declaration:
    """Return the declaration of an algorithm in the user's own files without running them.

    Raises `UnreadableError` if their text does not reveal it.
    """

    def text(module: str) -> bytes | None:
        own = own_code.module(module)
        return bundled(module) if own is None else own.text

    return read(own_code.files[reference.place].text, reference.attribute, text)


@cache
def declaration_of(cls: type) -> Declaration:
    """Return the declaration of a class, of an algorithm or of other settings."""
    module = inspect.getmodule(cls)
    facts = {fact: getattr(cls, fact) for fact in FACTS if hasattr(cls, fact)}
    bases = [base for base in cls.__mro__ if base.__module__ != "raysim.core.algorithm"]
    down, up = _messages_of(cls)
    return Declaration(
        cls.__name__,
        inspect.cleandoc(cls.__doc__ or ""),
        inspect.cleandoc((module and module.__doc__) or ""),
        tuple(settings_fields(cls)),
        **facts,
        checks=any(check in vars(base) for base in bases for check in CHECKS),
        down=down,
        up=up,
        paper_of=next((base.__name__ for base in bases if "paper" in vars(base)), ""),
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
    return _read(source) if known and _is_covered(source) else None


def _read(source: bytes) -> Declaration | None:
    with suppress(UnreadableError):
        return read(source)
    return None


def _imported(name: str, source: bytes | None) -> Declaration:
    imported = declaration_of(algorithm_class(name))
    if (
        source is not None
        and _is_covered(source)
        and (literal := _read(source)) is not None
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
