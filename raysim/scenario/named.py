"""Sections whose `name` chooses a class, such as `algorithm`: checks of their keys, creation of the objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, Field, Strict, create_model

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.core.fields import settings_fields
from raysim.plugins.calling import failing
from raysim.plugins.own_code import OwnCode
from raysim.plugins.registry import algorithm_class, named
from raysim.scenario.origin import Key, Origin
from raysim.scenario.schema import Section
from raysim.scenario.sentences import CHOICES, validated
from raysim.scenario.yaml_text import shown

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm


ALGORITHM: Key = ("algorithm",)

PAPER = "paper"
"""Name of the profile with an algorithm's default settings."""


def object_of(section: Mapping[str, Any], key: Key, own_code: OwnCode, origin: Origin) -> tuple[Any, dict[str, Any]]:
    """Return the object of a section whose `name` chooses a class, and the section with the values of all its fields.

    own_code: the user's own files, which may define the class. Raises `ScenarioError`.
    """
    name, fields = split_name(section, key, origin)
    cls: Any = _class_of(name, key, own_code, origin)
    resolved = {"name": name}
    if key == ALGORITHM:
        profile = fields.pop("profile", PAPER)
        fields = _preset(cls, profile, origin) | fields
        resolved |= {"profile": profile} if cls.profiles else {}
    settings = checked_fields(cls, name, fields, key, origin)
    return made(cls, settings.model_dump(), key, origin), resolved | settings.model_dump(mode="json")


def _class_of(name: str, key: Key, own_code: OwnCode, origin: Origin) -> type:
    """Return the class that the `name` of a section chooses. Raises `ScenarioError`."""
    named_by = (*key, "name")
    if key == ALGORITHM:
        own_code.activate()
        try:
            return algorithm_class(name)
        except ScenarioError as error:
            raise origin.error(named_by, error.reason) from error.__cause__
    choices = CHOICES[key]
    cls = class_of(name, f"{key[-1]}s" if choices.hook else "", choices.classes, named_by, own_code, origin)
    if name not in choices.classes and not (is_dataclass(cls) and callable(getattr(cls, choices.hook, None))):
        raise origin.error(named_by, f"{name} is not a dataclass with a method `{choices.hook}`; choose such a class")
    return cast(type, cls)


def class_of(name: str, kind: str, classes: Mapping[str, type], key: Key, own_code: OwnCode, origin: Origin) -> Any:
    """Return one of raysim's classes, or the user's own class or function, by name. Raises `ScenarioError`.

    kind: of the entry points; empty: the user's own are not allowed. key: the key of the name, for errors.
    """
    if name in classes:
        return classes[name]
    reference = named(kind, name) if kind else None
    if reference is None:
        own = ", or your own, such as ./mine.py:Name" if kind else ""
        raise origin.error(key, f"unknown name {name!r}{suggest(name, classes)} (available: {', '.join(classes)}{own})")
    own_code.activate()
    try:
        return reference.get()
    except ScenarioError as error:
        raise origin.error(key, error.reason) from error.__cause__


def _preset(cls: type[AnyAlgorithm], profile: Any, origin: Origin) -> dict[str, Any]:
    """Return the field values of a profile. Raises `ScenarioError` if the algorithm has no such profile."""
    presets: dict[str, Mapping[str, Any]] = {PAPER: {}, **cls.profiles}
    if not isinstance(profile, str) or profile not in presets:
        raise origin.error(("algorithm", "profile"), f"{shown(profile)} given; allowed: {', '.join(presets)}")
    return dict(presets[profile])


def checked_fields(cls: type, name: str, fields: Mapping[str, Any], key: Key, origin: Origin) -> BaseModel:
    """Return the fields of a section, checked and with defaults, for the class that its `name` chooses.

    The class may be a user's own. Raises `ScenarioError`, also if a scenario cannot contain the type of a field.
    """
    with failing(f"{name}: a field has a type that a scenario cannot contain", ".".join(key)):
        model = settings_model(cls)
    settings: BaseModel = validated(model, fields, origin, key)
    # The values must also be valid when they are read from resolved.yaml. This also checks the defaults.
    validated(model, settings.model_dump(mode="json", warnings=False), origin, key)
    return settings


@cache  # pydantic searches all modules for the source of a new model, which takes 60 ms
def settings_model(cls: type) -> type[BaseModel]:
    """Return a strict pydantic model with the fields of a settings class, including their ranges and meanings."""
    fields: dict[str, Any] = {}
    for info in settings_fields(cls):
        default = ... if info.default is MISSING else info.default
        fields[info.name] = (_with_lists(info.hint), Field(default, description=info.doc))
    return create_model(cls.__name__, __base__=Section, **fields)


def _with_lists(hint: Any) -> Any:
    """Return an annotation that allows lists where `hint` requires tuples, because YAML has no tuples."""
    origin, args = get_origin(hint), get_args(hint)
    inner = tuple(map(_with_lists, args))
    if hint is tuple or origin is tuple:
        return Annotated[GenericAlias(tuple, inner) if args else tuple, Strict(False)]
    if origin is Annotated:
        return Annotated[inner[0], *args[1:]]
    if origin in (Union, UnionType):
        return Union[inner]  # noqa: UP007
    return GenericAlias(origin, inner) if origin in (list, dict) else hint


def made(cls: type, settings: Mapping[str, Any], key: Key, origin: Origin) -> Any:
    """Create a settings object. Raises `ScenarioError` if its class, perhaps the user's own, refuses the values."""
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
