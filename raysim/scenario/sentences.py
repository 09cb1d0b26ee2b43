"""Error messages for invalid sections: one sentence per pydantic error, with the key, the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import date
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import ELSEWHERE, suggest
from raysim.core.fields import number_text
from raysim.scenario.origin import Key, Origin
from raysim.scenario.schema import NAME_FORM, Choices, Section, Settings
from raysim.scenario.yaml_text import short, shown


def model_in(annotation: Any) -> Any:
    """Return the pydantic model inside an annotation such as `list[Override]`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := model_in(arg)) is not None), None)


SECTIONS: Mapping[str, type[Section]] = {
    name: model for name, field in Settings.model_fields.items() if (model := model_in(field.annotation))
}
"""Name -> section, for the sections of a scenario that have keys."""

CHOICES: Mapping[Key, Choices] = {
    (name, key): choices
    for name, section in SECTIONS.items()
    for key, field in section.model_fields.items()
    for choices in field.metadata
    if isinstance(choices, Choices)
}
"""Key -> choices, for keys whose value may be a mapping with a `name`, except `algorithm`."""

NAMED: Mapping[Key, Mapping[str, type]] = {key: choices.classes for key, choices in CHOICES.items() if choices.hook}
"""Key -> raysim's classes, for keys whose value is a mapping with a `name` and may name a user's class."""

NAMED_SECTIONS: tuple[Key, ...] = (("algorithm",), *NAMED)
"""The sections whose `name` determines their other keys."""

PARTICIPATION: Key = ("clients", "participation")

ALLOWED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys and values",
    "model_type": "a mapping of keys and values",
    "none_required": "null",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": NAME_FORM,
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} entry",
    "too_long": "at most {max_length} entries",
    "finite_number": "a finite number",
    "fraction_parsing": "a share such as 1/3",
}


MISSPELT = 0.85
"""Minimum similarity, as measured by difflib, of a misspelt key and the intended key."""

NAME = re.compile(r"^[A-Za-z][\w-]*$")
"""Pattern of a text that was probably intended as the `name` of a section."""


def validated(model: type[Any], raw: Mapping[str, Any], origin: Origin, prefix: Key) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _sentence(error, model, raw, origin, prefix) from None


def _sentence(
    error: ValidationError, model: type[BaseModel], raw: Mapping[str, Any], origin: Origin, prefix: Key
) -> ScenarioError:
    """Return an error about the first problem; alternatives, as in `a whole number or 'auto'`, are one problem."""
    problems = [(_key(item, raw), item) for item in error.errors(include_url=False)]
    # Unknown keys come first: a misspelt required key is both unknown and missing, and only "unknown key" suggests the
    # right spelling.
    problems.sort(key=lambda problem: problem[1]["type"] not in ("extra_forbidden", "invalid_key"))
    key, first = problems[0]
    full = (*prefix, *key)
    if first["type"] == "extra_forbidden":
        return origin.error(full, _unknown(model, key, prefix))
    if first["type"] == "invalid_key" or first["loc"][-1] == "[key]":
        return origin.error(full, "keys must be text; put this key in quotes")
    if first["type"] == "missing" and isinstance(first["loc"][-1], int):
        return origin.error(full, f"{shown(first['input'])} given; give a list with more entries")
    if first["type"] == "missing":
        return origin.error(full, "is missing; add this key")
    if full == PARTICIPATION and first["type"] in ("greater_than", "less_than_equal"):
        return origin.error(full, f"{shown(first['input'])} given; {_share_of_clients(first['input'], raw)}")
    allowed = dict.fromkeys(allowed_by(item) for at, item in problems if at == key)
    value = first["input"]
    given = shown(value)
    if isinstance(value, bool | int | float | date):
        given = short(origin.written(full)) or given
    hint = ""
    if first["type"] == "string_type" and isinstance(value, bool | int | float | date):
        hint = f'; put it in quotes: "{given}"'
        if origin.of_shell(full):
            hint = f"; put it in quotes within quotes, because the shell removes the outer ones: '\"{given}\"'"
    elif first["type"] in ("dict_type", "model_type") and isinstance(value, str) and NAME.match(value):
        named = full in NAMED_SECTIONS or "name" in getattr(_section_at(model, key), "model_fields", ())
        hint = f", for example {{name: {value}}}" if named else ""
    how = "give" if allowed.keys() <= {"a list", "a mapping of keys and values"} else "allowed:"
    return origin.error(full, f"{given} given; {how} {' or '.join(allowed)}{hint}")


def _share_of_clients(given: float, raw: Mapping[str, Any]) -> str:
    """Return the allowed values of `clients.participation`, and which share a given number of clients would be."""
    allowed = "allowed: a share of the clients, greater than 0 and at most 1"
    clients = raw.get("clients")
    count = clients.get("count") if isinstance(clients, Mapping) else None
    if not isinstance(count, int) or not 1 < given <= count or int(given) != given:
        return allowed
    return f"{allowed}; {given:g} of {count} clients is {given / count:.4g}"


def unknown_key(key: str) -> str:
    """Return why a dotted key is unknown, with a similar key; "" if a scenario may have the key.

    The fields of a method, and of other sections that `name` decides, are not checked.
    """
    raw: Any = None
    for part in reversed(key.split(".")):
        raw = {part: raw}
    try:
        Settings.model_validate(raw)
    except ValidationError as error:
        unknown = [_key(item, raw) for item in error.errors(include_url=False) if item["type"] == "extra_forbidden"]
        return _unknown(Settings, unknown[0], ()) if unknown else ""
    return ""


def _unknown(model: type[BaseModel], key: Key, prefix: Key) -> str:
    """Return the sentence about an unknown key of the section at `prefix`, whose keys are those of `model`."""
    named = (*prefix, *key[:-1]) in NAMED_SECTIONS
    names = [*(["name"] if named else []), *_section_at(model, key[:-1]).model_fields]
    return f"unknown key{_near(key[-1], names)} (allowed: {', '.join(names) or 'none'})"


def _near(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for an unknown key, with the most similar of `names`; "" if none is similar.

    A misspelt key of the section comes first, then the same key of another section: `clients.alpha` is meant as
    `data.partition.alpha`.
    """
    names, keys = list(names), _keys()

    def elsewhere(wanted: str) -> str:
        same = [key for key in keys if key.rpartition(".")[2] == wanted]
        return f"; did you mean {same[0]!r}?" if same else ""

    if get_close_matches(name, names, n=1, cutoff=MISSPELT):
        return suggest(name, names)
    return elsewhere(name) or suggest(name, names) or elsewhere(ELSEWHERE.get(name, ""))


def _keys() -> list[str]:
    """Return all keys of a scenario except those of methods; a setting of several classes occurs once."""
    keys = [*Settings.model_fields, *(f"{name}.{key}" for name, one in SECTIONS.items() for key in one.model_fields)]
    for section, classes in NAMED.items():
        keys += [f"{'.'.join(section)}.{field.name}" for cls in classes.values() for field in fields(cls)]
    return list(dict.fromkeys(keys))


def allowed_by(problem: Any) -> str:
    """Return the allowed values, in words, for one problem that pydantic reports."""
    given = problem.get("ctx", {})
    values = {key: number_text(value) if isinstance(value, int | float) else value for key, value in given.items()}
    return ALLOWED.get(problem["type"], problem["msg"]).format(**values)


def _key(problem: Any, raw: Any) -> Key:
    """Return the key of a problem that pydantic reports, without the tags of unions, which `raw` does not contain."""
    key: list[str] = []
    for part in problem["loc"]:
        try:
            raw = raw[part]
        except (LookupError, TypeError):
            if problem["type"] == "missing" and isinstance(part, str) and isinstance(raw, Mapping):
                key.append(part)
            break
        key.append(str(part))
    return tuple(key)


def _section_at(model: type[BaseModel], key: Key) -> type[BaseModel]:
    section = model
    for part in key:
        if not part.isdecimal():
            section = model_in(section.model_fields[part].annotation)
    return section
