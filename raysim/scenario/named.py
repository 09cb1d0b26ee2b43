"""Sections whose `name` chooses a class, such as `data.partition`: validate their keys and create the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin, is_typeddict

from pydantic import BaseModel, PydanticUserError, ValidationError

from raysim.common.errors import FAILURES, ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import cause, quoted
from raysim.plugins.calling import where
from raysim.plugins.own_code import OwnCode
from raysim.plugins.references import Reference, named
from raysim.scenario.declaration import Declaration
from raysim.scenario.declared import declaration_of
from raysim.scenario.origin import Key, Origin
from raysim.scenario.schema import settings_model
from raysim.scenario.sentences import allowed_by, validated
from raysim.scenario.yaml_text import shown


def named_settings(
    section: Mapping[str, Any],
    key: Key,
    classes: Mapping[str, type],
    origin: Origin,
    own_code: OwnCode | None = None,
    hook: str = "",
) -> Any:
    """Return the settings object of a section such as `data.partition`, whose `name` chooses the class.

    own_code: the user's own files, which may define a class that is not in `classes`; it must have the method `hook`.
    None: only `classes` are allowed. Raises `ScenarioError`.
    """
    name, fields = split_name(section, key, origin)
    reference = None if own_code is None or name in classes else named(f"{key[-1]}s", name)
    if own_code is not None and reference is not None:
        cls = imported(reference, own_code, (*key, "name"), origin)
        if not is_dataclass(cls) or not callable(getattr(cls, hook, None)):
            raise origin.error((*key, "name"), f"{name} is not a dataclass with a method `{hook}`; choose such a class")
        classes = {name: cast(type, cls)}
    if name not in classes:
        raise origin.error(
            (*key, "name"), f"unknown name {name!r}{suggest(name, classes)} (available: {', '.join(classes)})"
        )
    checked = checked_fields(classes[name], name, fields, key, (*key, "name"), origin)
    return made(classes[name], checked, key, origin)


def imported(reference: Reference, own_code: OwnCode, key: Key, origin: Origin) -> Any:
    """Import the user's class or function that a key names. Raises `ScenarioError`."""
    own_code.activate()
    try:
        return reference.get()
    except ScenarioError as error:
        raise origin.error(key, error.reason) from None


def checked_fields(
    cls: type, name: str, fields: Mapping[str, Any], key: Key, key_of_name: Key, origin: Origin
) -> dict[str, Any]:
    """Return the fields of a section, valid and with defaults, for the dataclass that its `name` chooses.

    key: of the section. key_of_name: for errors about the class itself. Raises `ScenarioError`.
    """
    try:
        declaration = declaration_of(cls)
    except FAILURES as error:
        raise origin.error(key_of_name, f"{name}: its fields cannot be read: {cause(error)}") from error
    settings = validated(model_of(declaration, name, key_of_name, origin), fields, origin, key)
    checked: dict[str, Any] = settings.model_dump()
    return checked


def model_of(declaration: Declaration, name: str, key: Key, origin: Origin) -> type[BaseModel]:
    """Return the Pydantic model of a settings class, which may be a user's own.

    Raises `ScenarioError` when a field has a type or default that a scenario cannot contain.
    """
    for field in declaration.fields:
        if (foreign := _foreign(field.hint)) is not None:
            raise origin.error(
                key,
                f"{name}: field {field.name} has a type that a scenario cannot contain ({quoted(foreign)}); use int, "
                "float, bool, str, Literal, list, tuple, dict with text as keys, or a union of these with None",
            )
        if field.default is not MISSING and not _is_plain(field.default):
            kind = type(field.default)  # NumPy 1 shows a number of its own like a plain one
            named = "" if kind.__module__ == "builtins" else f" of type {kind.__module__}.{kind.__qualname__}"
            raise origin.error(
                key,
                f"{name}: field {field.name} has the default {quoted(field.default)}{named}, which a scenario cannot "
                "contain; allowed: text, numbers, true, false, null, lists, mappings",
            )
    try:
        model = settings_model(declaration)
        model.model_rebuild()  # raises where a type is not defined
        defaults = {field.name: field.default for field in declaration.fields if field.default is not MISSING}
        model.model_construct(**defaults).model_dump(mode="json", warnings=False)  # raises where YAML has no such type
        model.model_validate(defaults)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            if problem["type"] != "missing":  # a field without a default, which the scenario must set
                wrong = f"field {problem['loc'][0]} has the default {shown(problem['input'])}"
                raise origin.error(key, f"{name}: {wrong}; allowed: {allowed_by(problem)}") from None
    except Exception as error:  # Pydantic raises many kinds for types and names that it does not support
        why = str(error).splitlines()[0] if isinstance(error, PydanticUserError) else cause(error)
        raise origin.error(key, f"{name}: a field has a type that a scenario cannot contain ({why})") from None
    return model


def _foreign(hint: Any) -> Any:
    """Return the part of an annotation whose values YAML cannot give, such as an enum; None: there is none."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return None
    if origin is Annotated:
        return _foreign(args[0])
    if args and isinstance(origin, type) and issubclass(origin, Mapping):
        if args[0] not in (str, Any) and get_origin(args[0]) is not Literal:
            return hint
        args = args[1:]
    if isinstance(hint, type) and origin is None and not is_typeddict(hint):
        # `Any` is a class since Python 3.11.
        allowed = (int, float, bool, str, list, tuple, dict, object, NoneType, Any, Mapping, Sequence)
        return None if hint in allowed else hint
    return next((found for arg in args if (found := _foreign(arg)) is not None), None)


def _is_plain(value: Any) -> bool:
    """Whether YAML can represent this value; it cannot represent NumPy's numbers, for example."""
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def made(cls: type, settings: Mapping[str, Any], key: Key, origin: Origin) -> Any:
    """Create a settings object. Raises `ScenarioError` if its class, which may be a user's own, refuses the values."""
    try:
        return cls(**settings)
    except ValueError as error:
        raise origin.error(key, str(error)) from None
    except FAILURES as error:
        raise origin.error(key, f"cannot create {cls.__name__}: {where(error)}") from error


def split_name(section: Mapping[str, Any], key: Key, origin: Origin) -> tuple[str, dict[str, Any]]:
    fields = dict(section)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        given = "is missing" if name is None else f"{shown(name)} given"
        raise origin.error((*key, "name"), f"{given}; give a name")
    return name, fields
