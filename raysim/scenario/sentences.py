"""Error messages for invalid sections: one sentence per pydantic error, with the key, the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import ELSEWHERE, suggest
from raysim.core.fields import in_words
from raysim.scenario.origin import Key, Origin
from raysim.scenario.schema import Choices, Section, Settings
from raysim.scenario.yaml_text import shown


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


def validated(model: type[Any], raw: Mapping[str, Any], origin: Origin, prefix: Key) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _sentence(error, model, raw, origin, prefix) from None


def _sentence(
    error: ValidationError, model: type[BaseModel], raw: Mapping[str, Any], origin: Origin, prefix: Key
) -> ScenarioError:
    """Return an error about the first problem."""
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
    if first["type"] == "missing" and isinstance(first["loc"][-1], str):
        return origin.error(full, "is missing; add this key")
    value = first["input"]
    text = f"{shown(value)} given; allowed: {in_words(_hint_at(model, key))}"
    if first["type"] == "too_short":
        text = f"{shown(value)} given; {first['msg']}"
    elif first["type"] == "string_type" and not isinstance(value, list | dict):
        text += f"; put it in quotes (on a command line, in quotes within quotes: '\"{shown(value)}\"')"
    return origin.error(full, text)


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
    names = [*(["name"] if named else []), *model_in(_hint_at(model, key[:-1])).model_fields]
    return f"unknown key{_near(key[-1], names)} (allowed: {', '.join(names) or 'none'})"


def _near(name: str, names: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for an unknown key, with the most similar of `names`; "" if none is similar.

    If the section has no similar key, the same key of another section is meant: `clients.alpha` is
    `data.partition.alpha`.
    """
    same = [key for key in _keys() if key.rpartition(".")[2] in (name, ELSEWHERE.get(name))]
    return suggest(name, names) or (f"; did you mean {same[0]!r}?" if same else "")


def _keys() -> list[str]:
    """Return all keys of a scenario except those of methods; a setting of several classes occurs once."""
    keys = [*Settings.model_fields, *(f"{name}.{key}" for name, one in SECTIONS.items() for key in one.model_fields)]
    for section, classes in NAMED.items():
        keys += [f"{'.'.join(section)}.{field.name}" for cls in classes.values() for field in fields(cls)]
    return list(dict.fromkeys(keys))


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


def _hint_at(model: type[BaseModel], key: Key) -> Any:
    """Return the annotation of the value at a key below a section."""
    hint: Any = model
    for part in key:
        section = model_in(hint)
        own = section is not None and part in section.model_fields
        hint = get_type_hints(section, include_extras=True)[part] if own else _entry(hint)
    return hint


def _entry(hint: Any) -> Any:
    """Return the type of entries of a list, tuple or mapping in an annotation: `int` for `list[int] | None`.

    Return None if it contains none of these.
    """
    args = [arg for arg in get_args(hint) if arg is not Ellipsis]
    if get_origin(hint) in (list, tuple, dict) and args:
        return args[-1]
    return next((entry for arg in args if (entry := _entry(arg)) is not None), None)
