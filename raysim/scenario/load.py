"""From a YAML file and `--set` overrides to a validated scenario, or one sentence that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from raysim.core.algorithm import AnyAlgorithm
from raysim.core.errors import ScenarioError
from raysim.scenario.registry import algorithm_class, suggest
from raysim.scenario.schema import Scenario, settings_model

Key = tuple[str, ...]

# Sections whose `name` decides what their other keys are.
NAMED_SECTIONS: tuple[Key, ...] = (("algorithm",), ("data", "partition"))

PAPER = "paper"
"""The profile that is every algorithm's defaults."""

ALLOWED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys and values",
    "model_type": "a mapping of keys and values",
    "none_required": "null",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "letters, digits, dots, dashes and underscores, beginning with a letter or digit",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} entry",
    "finite_number": "a finite number",
}


MOST_ENTRIES = 1_000_000
"""Values in a scenario, each alias counted as what it stands for."""

UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
"""What PyYAML raises on text that is no YAML; all but the first are its own slips, on `!!int ''` for example."""


class Loader(yaml.SafeLoader):
    """Safe YAML that also reads 1e-3 as a number and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str | int | float) else id(key))
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Origin:
    """Where each key came from, so that an error names the right place."""

    file: str
    sets: Mapping[Key, str]

    def of(self, key: Key) -> str:
        """The `--set` that gave this key, or the file."""
        for path, text in reversed(list(self.sets.items())):
            if key[: len(path)] == path:
                return f"--set {text}"
        return self.file

    def error(self, key: Key, text: str) -> ScenarioError:
        """The one sentence about a key."""
        return ScenarioError(f"{self.of(key)}: {' '.join('.'.join(key).split()) or 'scenario'}: {text}")


@dataclass(frozen=True)
class Loaded:
    """A scenario, validated, with its algorithm constructed."""

    scenario: Scenario
    algorithm: AnyAlgorithm
    origin: Origin
    text: str  # as given
    resolved: Mapping[str, Any]  # every key with its value, defaults filled in

    def resolved_yaml(self) -> str:
        """The resolved scenario as YAML; loading it gives the same run."""
        return yaml.safe_dump(dict(self.resolved), sort_keys=False, allow_unicode=True)

    def flat(self) -> dict[str, str | int | float | bool | None]:
        """The resolved scenario with dotted keys; lists as YAML text."""
        return dict(_flatten(self.resolved))


def load_scenario(source: str | Path | Mapping[str, Any], sets: Sequence[str] = ()) -> Loaded:
    """Read and validate a scenario.

    source: a YAML file, or the same content as a mapping. sets: overrides such as "training.lr=0.1"; values are YAML.
    Raises `ScenarioError`, one sentence naming the file or override, the key, what was given and what is allowed.
    """
    if isinstance(source, Mapping):
        file, text = "scenario", yaml.safe_dump(dict(source), sort_keys=False)
    else:
        file = str(source)
        text = _read(Path(source))
    raw = _parse(text, file)
    overrides = [_parse_set(" ".join(item.split())) for item in sets]
    overrides.sort(key=lambda override: _rank(override.path))
    origin = Origin(file, {override.path: override.text for override in overrides})
    for override in overrides:
        _apply(raw, override.path, override.value, origin)
    scenario = _validate(Scenario, raw, origin, ())
    algorithm, fields = _named(scenario.algorithm, ("algorithm",), origin)
    cls = algorithm_class_at(algorithm, origin)
    profile = fields.pop("profile", PAPER)
    settings = _validate(settings_model(cls), _preset(cls, profile, origin) | fields, origin, ("algorithm",))
    try:
        constructed = cls(**settings.model_dump())
    except ValueError as error:
        raise origin.error(("algorithm",), str(error)) from None
    resolved = scenario.model_dump(mode="json")
    chosen = {"profile": profile} if cls.profiles else {}
    resolved["algorithm"] = {"name": algorithm, **chosen, **settings.model_dump(mode="json")}
    return Loaded(scenario, constructed, origin, text, resolved)


def algorithm_class_at(name: str, origin: Origin) -> type[AnyAlgorithm]:
    """`algorithm_class`, with the place of the name in the error."""
    try:
        return algorithm_class(name)
    except ScenarioError as error:
        raise ScenarioError(f"{origin.of(('algorithm', 'name'))}: {error}") from None


def _preset(cls: type[AnyAlgorithm], profile: Any, origin: Origin) -> dict[str, Any]:
    """The fields that a profile sets. Raises `ScenarioError` when the algorithm has no such profile."""
    presets = {PAPER: {}, **cls.profiles}
    if not isinstance(profile, str) or profile not in presets:
        raise origin.error(("algorithm", "profile"), f"{_show(profile)} given; allowed: {', '.join(presets)}")
    return dict(presets[profile])


def named_settings(section: Mapping[str, Any], key: Key, classes: Mapping[str, type], origin: Origin) -> Any:
    """The settings object of a section such as `data.partition`: its `name` chooses the class."""
    name, fields = _named(section, key, origin)
    if name not in classes:
        raise origin.error(
            (*key, "name"), f"unknown name {name!r}{suggest(name, classes)} (there are: {', '.join(classes)})"
        )
    settings = _validate(settings_model(classes[name]), fields, origin, key)
    return classes[name](**settings.model_dump())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: this is a folder; give a scenario file (.yaml)") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        raw = _loaded(text)
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__
        raise ScenarioError(f"{file}{where}: not valid YAML: {problem}") from None
    if not isinstance(raw, dict):
        raise ScenarioError(f"{file}: a scenario is a mapping of keys and values, not {_show(raw)}")
    return raw


def _loaded(text: str) -> Any:
    """YAML as plain values. Raises one of `UNREADABLE`, also when aliases stand for more than memory holds."""
    value = yaml.load(text, Loader)  # a SafeLoader: it makes no objects
    sizes: dict[int, int] = {}  # entries of each list and mapping, by identity

    def size(node: Any) -> int:
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = MOST_ENTRIES  # a node inside itself never ends
            inner = node.values() if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(map(size, inner))
        return sizes[id(node)]

    if size(value) > MOST_ENTRIES:
        raise ValueError(f"its aliases stand for more than {MOST_ENTRIES:,} entries")
    return value


def _rank(path: Key) -> int:
    """Whole mappings first, then the names that clear the other method's fields, then single fields.

    So `--set algorithm.mu0=1 --set algorithm.name=fedssa` means the same in either order.
    """
    if any(section[: len(path)] == path for section in NAMED_SECTIONS):
        return 0
    return 1 if path[:-1] in NAMED_SECTIONS and path[-1] == "name" else 2


class Override(NamedTuple):
    """One `--set`."""

    path: Key
    value: Any
    text: str  # as given


def _parse_set(item: str) -> Override:
    path, equals, text = item.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        raise ScenarioError(f"--set {item}: write it as key.key=value, for example training.lr=0.1")
    try:
        return Override(keys, _loaded(text), item)
    except UNREADABLE:
        raise ScenarioError(f"--set {item}: the value is not valid YAML") from None


def _apply(raw: dict[str, Any], path: Key, value: Any, origin: Origin) -> None:
    section = raw
    for depth, key in enumerate(path[:-1]):
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise origin.error(path, f"{'.'.join(path[: depth + 1])} is not a mapping; it has no keys to set")
    if path[:-1] in NAMED_SECTIONS and path[-1] == "name" and section.get("name") != value:
        section.clear()  # the other method's fields mean nothing to this one
    section[path[-1]] = value


def _named(section: Mapping[str, Any], key: Key, origin: Origin) -> tuple[str, dict[str, Any]]:
    fields = dict(section)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        given = "it is missing" if name is None else f"{_show(name)} given"
        raise origin.error((*key, "name"), f"{given}; allowed: a name")
    return name, fields


def _validate(model: type[Any], raw: Mapping[str, Any], origin: Origin, prefix: Key) -> Any:
    strange = next((key for key in _keys(raw) if not isinstance(key[-1], str)), None)
    if strange is not None:
        raise origin.error((*prefix, *map(str, strange)), "keys are text")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _sentence(error, model, origin, prefix) from None


def _keys(raw: Any) -> Iterable[tuple[Any, ...]]:
    """Every key with its path. A mapping that an alias repeats counts once: a few of them can stand for billions."""
    seen: set[int] = set()
    rest: list[tuple[tuple[Any, ...], Any]] = [((), raw)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, Mapping) and id(value) not in seen:
            seen.add(id(value))
            yield from ((*path, key) for key in value)
            rest += [((*path, key), inner) for key, inner in list(value.items())[::-1]]


def _sentence(error: ValidationError, model: type[BaseModel], origin: Origin, prefix: Key) -> ScenarioError:
    """The first problem; the alternatives of a union (`a whole number or 'auto'`) are one problem."""
    problems = [(_real_key(item["loc"], model), item) for item in error.errors(include_url=False)]
    # Unknown keys first: a misspelt required key is both unknown and missing, and the first says more.
    problems.sort(key=lambda problem: problem[1]["type"] != "extra_forbidden")
    key, first = problems[0]
    full = (*prefix, *key)
    if first["type"] == "extra_forbidden":
        names = list(_section_at(model, key[:-1]).model_fields)
        return origin.error(full, f"unknown key{suggest(key[-1], names)} (allowed: {', '.join(names) or 'none'})")
    if first["type"] == "missing":
        return origin.error(full, "is required and was not given")
    allowed = dict.fromkeys(
        ALLOWED.get(item["type"], item["msg"]).format(**item.get("ctx", {})) for at, item in problems if at == key
    )
    return origin.error(full, f"{_show(first['input'])} given; allowed: {' or '.join(allowed)}")


def _real_key(loc: Sequence[int | str], model: type[BaseModel]) -> Key:
    """A pydantic location without the tags that it adds for unions."""
    key: list[str] = []
    section: Any = model
    for part in loc:
        if isinstance(part, int):
            key.append(str(part))
            continue
        fields = getattr(section, "model_fields", None)
        if fields is None:
            break
        key.append(part)
        if part not in fields:
            break
        annotation = fields[part].annotation
        if get_origin(annotation) is dict:
            return (*key, *(str(rest) for rest in loc[loc.index(part) + 1 :]))
        section = _model_in(annotation)
    return tuple(key)


def _section_at(model: type[BaseModel], key: Key) -> type[BaseModel]:
    section = model
    for part in key:
        if not part.isdigit():
            section = _model_in(section.model_fields[part].annotation)
    return section


def _model_in(annotation: Any) -> Any:
    """The pydantic model inside an annotation such as `list[Override]`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


def _show(value: Any) -> str:
    """A value as the user writes it, in YAML; text in quotes."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n")
        except (RecursionError, ValueError):  # too deep, or a number of more digits than Python writes
            text = f"a {type(value).__name__}"
        text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def _flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        yield prefix, yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    else:
        yield prefix, value
