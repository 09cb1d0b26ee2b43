"""From a YAML file and `--set` overrides to a validated scenario, or one sentence that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import yaml
from pydantic import BaseModel, PydanticUserError, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.results import Scalar
from raysim.common.text import cause, cut, expanded, holds_secret, quoted, redacted
from raysim.core.fields import number_text
from raysim.core.own_code import FAILURES, OwnCode, Reference, named, where
from raysim.scenario.declared import Declaration, declaration_of, declared
from raysim.scenario.registry import algorithm_class, suggest
from raysim.scenario.schema import NAME_FORM, Scenario, settings_model
from raysim.scenario.yaml_text import UNREADABLE, Dumper, load_value, node_at, parse, read_text, short, shown

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm

Key = tuple[str, ...]

# Sections whose `name` decides what their other keys are.
NAMED_SECTIONS: tuple[Key, ...] = (
    ("algorithm",),
    ("data", "partition"),
    ("clients", "selection"),
    ("training", "schedule"),
)

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
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": NAME_FORM,
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} entry",
    "finite_number": "a finite number",
}


NAME = re.compile(r"^[A-Za-z][\w-]*$")
"""Text that was meant as the name of a section."""


@dataclass(frozen=True)
class Origin:
    """Where each key came from, so that an error names the right place."""

    file: str
    text: str  # of the file
    sets: Mapping[Key, str]

    def of(self, key: Key) -> str:
        """The `--set` that gave this key or, where the file does not have it, a part of it; else the file."""
        path = self._set(key)
        if path is None and node_at(self.text, key) is None:
            path = next((path for path in self.sets if path[: len(key)] == key), None)
        return self.file if path is None else f"--set {cut(self.sets[path])}"

    def written(self, key: Key) -> str:
        """A value without quotes as it was written, such as 1e3 for 1000.0; empty where it cannot be found."""
        path = self._set(key)
        text = self.text if path is None else self.sets[path].partition("=")[2]
        try:
            node = node_at(text, key[len(path or ()) :])
        except UNREADABLE:  # *** in place of a secret
            return ""
        return node.value if isinstance(node, yaml.ScalarNode) and node.style is None else ""

    def _set(self, key: Key) -> Key | None:
        return next((path for path in reversed(list(self.sets)) if key[: len(path)] == path), None)

    def error(self, key: Key, text: str, cause: Key = (), kind: type[ScenarioError] = ScenarioError) -> ScenarioError:
        """The one sentence about a key. cause: another key that it clashes with, named where a `--set` gave that."""
        origin = self.of(cause if cause and self._set(cause) else key)
        return kind(text, key=cut(" ".join(".".join(key).split())) or "scenario", origin=origin)


@dataclass(frozen=True)
class Loaded:
    """A scenario, validated."""

    scenario: Scenario
    declared: Declaration  # of its algorithm
    settings: Mapping[str, Any]  # of its algorithm
    origin: Origin
    text: str  # as given, without the secrets that addresses may hold
    resolved: Mapping[str, Any]  # every key with its value, defaults filled in
    overrides: Mapping[str, Scalar]  # of `flat`, what `--set` gave
    own: AnyAlgorithm | None = None  # see with_algorithm
    own_code: OwnCode = OwnCode()  # the user's own files that it names

    def __getstate__(self) -> dict[str, Any]:
        return {"own_code": self.own_code, **vars(self)}  # first: what follows may need its modules

    @cached_property
    def algorithm(self) -> AnyAlgorithm:
        """The algorithm with its settings, made when first asked for, as its file may import torch.

        Raises `ScenarioError` where it cannot be made.
        """
        if self.own is not None:
            return self.own
        self.own_code.activate()
        cls = algorithm_class(self.resolved["algorithm"]["name"])
        made: AnyAlgorithm = _made(cls, self.settings, ("algorithm",), self.origin)
        return made

    @property
    def method(self) -> str:
        """What tables and plots call its algorithm: the class's name where it is in a user's own file."""
        name = str(self.resolved["algorithm"]["name"])
        return name if Reference.of(name) is None else self.declared.name

    @property
    def warmup(self) -> dict[str, int]:
        """The algorithm's fields that count rounds of local training before the method begins, with their values."""
        settings = self.settings if self.own is None else vars(self.own)
        return {field.name: settings[field.name] for field in self.declared.fields if field.counts_warmup}

    def with_algorithm(self, algorithm: AnyAlgorithm) -> Loaded:
        """The same with this algorithm in place of the one that the scenario names."""
        return replace(self, own=algorithm, declared=declaration_of(type(algorithm)))

    def resolved_yaml(self) -> str:
        """The resolved scenario as YAML; loading it gives the same run."""
        return yaml.dump(dict(self.resolved), Dumper=Dumper, sort_keys=False, allow_unicode=True)

    def flat(self) -> dict[str, Scalar]:
        """The resolved scenario with dotted keys; lists as YAML text."""
        return dict(flatten(self.resolved))


CODE = "code"
"""The folder, beside the scenario of a run or a job, of the user's own files that it names."""


def load_scenario(
    source: str | Path | Mapping[str, Any],
    sets: Sequence[str] = (),
    *,
    folders: Sequence[Path] = (),
    trust: Callable[[OwnCode], object] = lambda code: None,
) -> Loaded:
    """Read and validate a scenario.

    source: a YAML file, or the same content as a mapping. sets: overrides such as "training.lr=0.1"; values are YAML.
    folders: where to look for the user's own files, besides the scenario's folder and the current one. trust: raises
    when they must not run; it is asked before they may.
    Raises `ScenarioError`, one sentence naming the file or override, the key, what was given and what is allowed.
    """
    if isinstance(sets, str):
        raise ScenarioError(f"sets: {sets!r} given; allowed: a list of overrides, for example [{sets!r}]")
    if isinstance(source, Mapping):
        file, text, places = "scenario", _written(source), [Path()]
    elif not isinstance(source, str | Path):
        raise ScenarioError(f"scenario: a {type(source).__name__} given; allowed: a YAML file, or its keys and values")
    else:
        file = str(source)
        text = read_text(Path(source))
        places = [Path(source).parent, Path()]
    raw = parse(text, file)
    if {"base", "grid", "runs", "seeds"} & raw.keys() - set(Scenario.model_fields):
        raise ScenarioError(f"{file}: is a sweep, not a scenario; `raysim sweep` runs it")
    overrides = [_parse_set(" ".join(item.split())) for item in sets]
    overrides.sort(key=lambda override: _rank(override.path))
    origin = Origin(file, text, {override.path: override.text for override in overrides})
    for override in overrides:
        _apply(raw, override.path, override.value, origin)
    own_code = _own_code(raw, origin, [*folders, *places])
    trust(own_code)
    scenario = _validate(Scenario, raw, origin, ())
    algorithm, fields = _named(scenario.algorithm, ("algorithm",), origin)
    try:
        declaration = declared(algorithm, own_code)
    except ScenarioError as error:
        raise ScenarioError(f"{origin.of(('algorithm', 'name'))}: {error}") from None
    profile = fields.pop("profile", PAPER)
    given = _preset(declaration, profile, origin) | fields
    model = _settings_model(declaration, algorithm, ("algorithm", "name"), origin)
    settings = _validate(model, given, origin, ("algorithm",))
    resolved = scenario.model_dump(mode="json")
    chosen = {"profile": profile} if declaration.profiles else {}
    resolved["algorithm"] = {"name": algorithm, **chosen, **settings.model_dump(mode="json")}
    flat = dict(flatten(resolved))
    keys = (key for one in overrides for key, _ in flatten(one.value, ".".join(one.path)))
    # A key that is not there any more was of a method whose name another override replaced.
    overridden = {key: flat[key] for key in keys if key in flat}
    loaded = Loaded(
        scenario, declaration, settings.model_dump(), origin, redacted(text), resolved, overridden, own_code=own_code
    )
    if declaration.checks:
        _ = loaded.algorithm  # raises
    return loaded


def _written(source: Mapping[str, Any]) -> str:
    try:
        return yaml.dump(dict(source), Dumper=Dumper, sort_keys=False)
    except yaml.representer.RepresenterError as error:
        raise ScenarioError(
            f"scenario: {short(repr(error.args[-1]))} given; allowed: text, numbers, true, false, null, lists, mappings"
        ) from None


def _own_code(raw: dict[str, Any], origin: Origin, folders: Sequence[Path]) -> OwnCode:
    """The user's own files that a scenario names, which it then names as a run does, wherever they lie."""
    paths: dict[Path, Key] = {}
    for holder, at, key in list(_names(raw, ())):
        reference = Reference.of(holder[at]) if isinstance(holder[at], str) else None
        if reference is None or not reference.is_file:
            continue
        place = expanded(reference.place)
        places = [path for folder in folders for path in (folder / place, folder / CODE / place.name)]
        path = next((place for place in places if place.exists() and not place.is_dir()), None)
        if path is None:
            looked = ", ".join(dict.fromkeys(str(folder.absolute()) for folder in folders))
            raise origin.error(key, f"{holder[at]} given, but there is no such file in {looked}")
        paths.setdefault(path.resolve(), key)
        holder[at] = reference.name
    try:
        return OwnCode.of(paths)
    except ScenarioError as error:
        raise origin.error(next(iter(paths.values())), error.reason) from None


def _names(value: Any, key: Key) -> Iterator[tuple[Any, Any, Key]]:
    """(container, key or index in it, dotted key) of whatever may name a user's own code."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, inner in entries:
        path = (*key, str(at))
        if (at == "name" and key) or key[-1:] == ("models",):
            yield value, at, path
        else:
            yield from _names(inner, path)


def _preset(declaration: Declaration, profile: Any, origin: Origin) -> dict[str, Any]:
    """The fields that a profile sets. Raises `ScenarioError` when the algorithm has no such profile."""
    presets = {PAPER: {}, **declaration.profiles}
    if not isinstance(profile, str) or profile not in presets:
        raise origin.error(("algorithm", "profile"), f"{shown(profile)} given; allowed: {', '.join(presets)}")
    return dict(presets[profile])


def named_settings(
    section: Mapping[str, Any],
    key: Key,
    classes: Mapping[str, type],
    origin: Origin,
    own_code: OwnCode | None = None,
    hook: str = "",
) -> Any:
    """The settings object of a section such as `data.partition`: its `name` chooses the class.

    own_code: where a class may come from that is none of `classes`, and has the method `hook`; None: nowhere else.
    """
    name, fields = _named(section, key, origin)
    reference = None if own_code is None or name in classes else named(f"{key[-1]}s", name)
    if own_code is not None and reference is not None:
        own_code.activate()
        try:
            cls = reference.get()
        except ScenarioError as error:
            raise origin.error((*key, "name"), error.reason) from None
        if not is_dataclass(cls) or not callable(getattr(cls, hook, None)):
            raise origin.error((*key, "name"), f"{name}: is not a dataclass with a method {hook!r}")
        classes = {name: cast(type, cls)}
    if name not in classes:
        raise origin.error(
            (*key, "name"), f"unknown name {name!r}{suggest(name, classes)} (there are: {', '.join(classes)})"
        )
    try:
        declaration = declaration_of(classes[name])
    except FAILURES as error:
        raise origin.error((*key, "name"), f"{name}: its fields cannot be read: {cause(error)}") from error
    settings = _validate(_settings_model(declaration, name, (*key, "name"), origin), fields, origin, key)
    return _made(classes[name], settings.model_dump(), key, origin)


def _settings_model(declaration: Declaration, name: str, key: Key, origin: Origin) -> type[BaseModel]:
    """The Pydantic model of the fields of a settings class, which may be a user's own."""
    for field in declaration.fields:
        if field.default is not MISSING and not _is_plain(field.default):
            raise origin.error(
                key,
                f"{name}: field {field.name} has the default {quoted(field.default)}, which a scenario cannot contain; "
                "allowed: text, numbers, true, false, null, lists, mappings",
            )
    try:
        model = settings_model(declaration)
        model.model_rebuild()  # raises where a type is not defined
        defaults = {field.name: field.default for field in declaration.fields if field.default is not MISSING}
        model.model_construct(**defaults).model_dump(mode="json", warnings=False)  # raises where YAML has no such type
        model.model_validate(defaults)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            if problem["type"] != "missing":  # a field without a default, which the scenario gives
                wrong = f"field {problem['loc'][0]} has the default {shown(problem['input'])}"
                raise origin.error(key, f"{name}: {wrong}; allowed: {_allowed(problem)}") from None
    except Exception as error:  # Pydantic raises many kinds for types and names that it does not take
        why = str(error).splitlines()[0] if isinstance(error, PydanticUserError) else cause(error)
        raise origin.error(key, f"{name}: a field has a type that a scenario cannot contain ({why})") from None
    return model


def _is_plain(value: Any) -> bool:
    """Whether YAML has this value; NumPy's numbers are others."""
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _made(cls: type, settings: Mapping[str, Any], key: Key, origin: Origin) -> Any:
    """A settings object. Its class, which may be a user's own, may refuse what its fields allow."""
    try:
        return cls(**settings)
    except ValueError as error:
        raise origin.error(key, str(error)) from None
    except FAILURES as error:
        raise origin.error(key, f"{cls.__name__} cannot be made: {where(error)}") from error


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
    text: str  # as given, unless it holds a secret


def _parse_set(item: str) -> Override:
    path, equals, text = item.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        raise ScenarioError(f"--set {cut(item)}: write it as key.key=value, for example training.lr=0.1")
    try:
        return Override(keys, load_value(text), f"{path}=***" if holds_secret(text) else item)
    except UNREADABLE:
        raise ScenarioError(f"--set {cut(item)}: the value is not valid YAML") from None


def _apply(raw: dict[str, Any], path: Key, value: Any, origin: Origin) -> None:
    section = raw
    for depth, key in enumerate(path[:-1]):
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise origin.error(path, f"{'.'.join(path[: depth + 1])} is not a mapping, so its keys cannot be set")
    if path[:-1] in NAMED_SECTIONS and path[-1] == "name" and section.get("name") != value:
        section.clear()  # the other method's fields mean nothing to this one
    section[path[-1]] = value


def _named(section: Mapping[str, Any], key: Key, origin: Origin) -> tuple[str, dict[str, Any]]:
    fields = dict(section)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        given = "it is missing" if name is None else f"{shown(name)} given"
        raise origin.error((*key, "name"), f"{given}; allowed: a name")
    return name, fields


def _validate(model: type[Any], raw: Mapping[str, Any], origin: Origin, prefix: Key) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _sentence(error, model, raw, origin, prefix) from None


def _sentence(
    error: ValidationError, model: type[BaseModel], raw: Mapping[str, Any], origin: Origin, prefix: Key
) -> ScenarioError:
    """The first problem; the alternatives of a union (`a whole number or 'auto'`) are one problem."""
    problems = [(_key(item, raw), item) for item in error.errors(include_url=False)]
    # Unknown keys first: a misspelt required key is both unknown and missing, and the first says more.
    problems.sort(key=lambda problem: problem[1]["type"] not in ("extra_forbidden", "invalid_key"))
    key, first = problems[0]
    full = (*prefix, *key)
    if first["type"] == "extra_forbidden":
        names = [*(["name"] if full[:-1] in NAMED_SECTIONS else []), *_section_at(model, key[:-1]).model_fields]
        return origin.error(full, f"unknown key{suggest(key[-1], names)} (allowed: {', '.join(names) or 'none'})")
    if first["type"] == "invalid_key" or first["loc"][-1] == "[key]":
        return origin.error(full, "keys are text; put it in quotes")
    if first["type"] == "missing":
        return origin.error(full, "is required and was not given")
    allowed = dict.fromkeys(_allowed(item) for at, item in problems if at == key)
    value = first["input"]
    given = shown(value)
    if isinstance(value, bool | int | float | date):
        given = short(origin.written(full)) or given
    hint = ""
    if first["type"] == "string_type" and isinstance(value, bool | int | float | date):
        of_set = origin.of(full).startswith("--set ")
        hint = (
            f"; put it in quotes that the shell leaves: '\"{given}\"'" if of_set else f'; put it in quotes: "{given}"'
        )
    elif first["type"] in ("dict_type", "model_type") and isinstance(value, str) and NAME.match(value):
        named = full in NAMED_SECTIONS or "name" in getattr(_section_at(model, key), "model_fields", ())
        hint = f", for example {{name: {value}}}" if named else ""
    return origin.error(full, f"{given} given; allowed: {' or '.join(allowed)}{hint}")


def _allowed(problem: Any) -> str:
    """The words for one problem that pydantic found."""
    given = problem.get("ctx", {})
    values = {key: number_text(value) if isinstance(value, int | float) else value for key, value in given.items()}
    return ALLOWED.get(problem["type"], problem["msg"]).format(**values)


def _key(problem: Any, raw: Any) -> Key:
    """Where pydantic found a problem, without the tags that it adds for unions: they are no keys of what was given."""
    key: list[str] = []
    for part in problem["loc"]:
        try:
            raw = raw[part]
        except (LookupError, TypeError):
            if problem["type"] == "missing":
                key.append(part)
            break
        key.append(str(part))
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


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """(dotted key, value) of every value in nested mappings; lists as YAML text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        yield prefix, yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6).strip()
    else:
        yield prefix, value
