"""Sections whose `name` chooses a class, such as `data.partition`: validate their keys and create the object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from typing import Any, cast

from pydantic import BaseModel, PydanticUserError, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import cause
from raysim.core.fields import settings_fields
from raysim.plugins.calling import failing
from raysim.plugins.own_code import OwnCode
from raysim.plugins.references import Reference, named
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
        raise origin.error(key, error.reason) from error.__cause__


def checked_fields(
    cls: type, name: str, fields: Mapping[str, Any], key: Key, key_of_name: Key, origin: Origin
) -> dict[str, Any]:
    """Return the fields of a section, valid and with defaults, for the dataclass that its `name` chooses.

    key: of the section. key_of_name: for errors about the class itself. Raises `ScenarioError`.
    """
    settings = validated(model_of(cls, name, key_of_name, origin), fields, origin, key)
    checked: dict[str, Any] = settings.model_dump()
    return checked


def model_of(cls: type, name: str, key: Key, origin: Origin) -> type[BaseModel]:
    """Return the Pydantic model of a settings class, which may be a user's own.

    Raises `ScenarioError` if a scenario cannot contain a field's type, or if a default does not survive being written
    to resolved.yaml and read again.
    """
    with failing(f"{name}: its fields cannot be read"):
        fields = settings_fields(cls)
    if any(field.name == "name" for field in fields):
        raise origin.error(
            key, f"{cls.__name__}: the field `name` has the name of the key that chooses this class; rename the field"
        )
    try:
        model = settings_model(cls)
        defaults = {field.name: field.default for field in fields if field.default is not MISSING}
        model.model_validate(model.model_construct(**defaults).model_dump(mode="json", warnings=False))
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            if problem["type"] != "missing":  # a field without a default, which the scenario must set
                wrong = f"field {problem['loc'][0]} has the default {shown(problem['input'])}"
                raise origin.error(key, f"{name}: {wrong}; allowed: {allowed_by(problem)}") from None
    except Exception as error:  # Pydantic raises many kinds for types that it does not support
        why = str(error).splitlines()[0] if isinstance(error, PydanticUserError) else cause(error)
        raise origin.error(key, f"{name}: a field has a type that a scenario cannot contain ({why})") from None
    return model


def made(cls: type, settings: Mapping[str, Any], key: Key, origin: Origin) -> Any:
    """Create a settings object. Raises `ScenarioError` if its class, which may be a user's own, refuses the values."""
    with failing(f"cannot create {cls.__name__}", ".".join(key)):
        try:
            return cls(**settings)
        except ValueError as error:
            raise origin.error(key, str(error)) from None


def split_name(section: Mapping[str, Any], key: Key, origin: Origin) -> tuple[str, dict[str, Any]]:
    fields = dict(section)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        given = "is missing" if name is None else f"{shown(name)} given"
        raise origin.error((*key, "name"), f"{given}; give a name")
    return name, fields
