"""Parses a YAML file and `--set` overrides into a scenario's keys with valid values.

Names are looked up here; `raysim.scenario.scenario` checks that the parts fit each other and the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import yaml
from pydantic import ConfigDict

from raysim.common.errors import ScenarioError
from raysim.common.results import Scalar
from raysim.common.text import expanded, holds_secret
from raysim.core.fields import settings_fields
from raysim.plugins.own_code import CODE, JOB_CODE, OwnCode
from raysim.plugins.reading import read_own_code
from raysim.plugins.registry import Reference
from raysim.scenario import schema
from raysim.scenario.bundled import scenario_file
from raysim.scenario.named import ALGORITHM, object_of
from raysim.scenario.origin import Key, Origin, override_source
from raysim.scenario.schema import Settings
from raysim.scenario.sentences import CHOICES, NAMED_SECTIONS, validated
from raysim.scenario.yaml_text import (
    UNREADABLE,
    Dumper,
    load_value,
    parse,
    read_text,
    written_value,
)

SWEEP_KEYS = {"base", "grid", "runs", "tune"}
"""Keys of sweep files that are not keys of scenarios."""


READ = ("data.path", "data.root", "data.partition.path", "system.trace", "inputs", "init.run")
"""Keys whose values are paths that a run reads."""

WRITTEN = ("output", "tracking.uri", "checkpoint.folder")
"""Keys whose values are paths to which a run writes."""

_DATABASE = "sqlite:///"


class ParsedScenario(Settings):
    """A scenario's keys with valid values or defaults. A section with a `name` is the object that it describes.

    It is made without its data: `raysim.scenario.scenario` checks that its parts fit each other.
    """

    # Objects are created by `model_construct`.
    model_config = ConfigDict(arbitrary_types_allowed=True, defer_build=True)

    output: str
    given: Set[str]  # the top-level keys in the file or in an override
    origin: Origin
    text: str  # content of the file
    resolved: Mapping[str, Any]  # every key with its value or default
    overrides: Mapping[str, Scalar]  # the entries of `flat` that overrides set
    own_code: OwnCode  # the user's own files that the scenario names

    def __repr__(self) -> str:
        """Return a short description in one line; `resolved_yaml` has every key."""
        kind, number = type(self).__name__, self.clients.count
        what = f"{self.method} on {self.data.name}, {number} clients, {self.rounds} rounds, seed {self.seed}"
        return f"<{kind} {self.name}: {what}>"

    __str__ = __repr__

    def __getstate__(self) -> dict[Any, Any]:
        # `own_code` is unpickled first, because other fields may need its modules
        return {"own_code": self.own_code, **super().__getstate__()}

    def with_choices(self, **sections: Mapping[str, Any]) -> Self:
        """Return a copy with values that raysim chose, by section; they are also in `resolved`."""
        changed = {name: getattr(self, name).model_copy(update=values) for name, values in sections.items()}
        resolved = {name: {**self.resolved[name], **values} for name, values in sections.items()}
        return self.model_copy(update={**changed, "resolved": {**self.resolved, **resolved}})

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name in the scenario, such as "fedgh" or "mine.py"."""
        return str(self.resolved["algorithm"]["name"])

    @property
    def method(self) -> str:
        """The algorithm's name in tables and plots. For a user's own file, this is the name of the class."""
        return self.algorithm_name if Reference.of(self.algorithm_name) is None else type(self.algorithm).__name__

    @property
    def warmup(self) -> dict[str, int]:
        """Field -> value, for the fields that count rounds of local training before the method begins."""
        counting = [one.name for one in settings_fields(type(self.algorithm)) if one.counts_warmup]
        return {name: getattr(self.algorithm, name) for name in counting}

    def first_set(self, *keys: str) -> Key | None:
        """Return the first of these dotted keys whose value differs from its default; None if there is none."""
        for key in keys:
            name, _, inner = key.partition(".")
            holder = getattr(self, name) if inner else self
            if holder is not None:
                default = type(holder).model_fields[inner or name].default
                if getattr(holder, inner or name) != default:
                    return tuple(key.split("."))
        return None

    def resolved_yaml(self) -> str:
        """Return the resolved scenario as YAML, which gives the same run when it is loaded."""
        return yaml.dump(dict(self.resolved), Dumper=Dumper, sort_keys=False, allow_unicode=True)

    def flat(self) -> dict[str, Scalar]:
        """Return the resolved scenario with dotted keys; lists are YAML text."""
        return dict(flatten(self.resolved))

    def seed_of(self, what: Literal["data", "weights", "cohorts"]) -> int:
        """The seed of one source of randomness."""
        own: int | None = getattr(self.seeds, what)
        return self.seed if own is None else own

    @property
    def output_folder(self) -> Path:
        """The folder for run folders, as an absolute path."""
        return Path(self.output).absolute()

    def results_folder(self, name: str | None = None) -> Path:
        """Return the folder for a command's results, which is below `output`.

        name: the name of the sweep that runs the scenario; default: the scenario's own name, for single runs.
        """
        return self.output_folder / (self.name if name is None else name)


def parse_scenario(
    source: str | Path | Mapping[str, Any],
    sets: Sequence[str] = (),
    *,
    sweep: Path | None = None,
    known_code: OwnCode | None = None,
    places: Mapping[str, str] | None = None,
    trust: Callable[[OwnCode], object] = lambda code: None,
) -> ParsedScenario:
    """Read a scenario and validate its keys.

    source: a YAML file, the name of a bundled scenario, or the same content as a mapping. sets: overrides such as
    "training.lr=0.1"; values are YAML.
    sweep: the folder of the sweep file, if there is one. places: dotted key -> the part of the sweep file that its
    override is from, such as "`grid`"; others are from `--set`. known_code: the user's own files, if they were found
    before. trust: called with these files before any of them runs; raises when they must not run.
    Raises `ScenarioError`, one sentence naming the file or override, the key, what was given and what is allowed.
    """
    if isinstance(source, Mapping):
        file, text, beside = "scenario", written_value(dict(source), "scenario"), sweep or Path()
    else:
        path = scenario_file(source)
        file, text, beside = str(path), read_text(path), path.parent
    raw = parse(text, file)
    if SWEEP_KEYS & raw.keys():
        raise ScenarioError(
            f"{file}: this file is a sweep, not a scenario; run it with `raysim sweep`, or only check it with `raysim "
            "sweep --dry-run`"
        )
    places = places or {}
    overrides = [_parse_set(item.strip(), places) for item in sets]
    overrides.sort(key=lambda override: _rank(override.path))
    origin = Origin(file, {override.path: override.text for override in overrides}, places)
    for override in overrides:
        _apply(raw, override.path, override.value, origin)
    finder = Paths(origin, beside, beside if sweep is None else sweep)
    paths = finder.make_absolute(raw)
    own_code = finder.own_code(raw, known_code or OwnCode())
    trust(own_code)
    settings = validated(Settings, raw, origin, ())
    sections, resolved = _with_objects(settings, own_code, origin)
    flat = {**dict(flatten(resolved)), **dict(flatten(paths))}
    keys = (key for one in overrides for key, _ in flatten(one.value, ".".join(one.path)))
    # `flat` lacks the keys of a method that another override replaced.
    overridden = {key: flat[key] for key in keys if key in flat}
    return ParsedScenario.model_construct(
        **{**sections, "output": settings.output or schema.OUTPUT},
        given=settings.model_fields_set,
        origin=origin,
        text=text,
        resolved=resolved,
        overrides=overridden,
        own_code=own_code,
    )


def _with_objects(settings: Settings, own_code: OwnCode, origin: Origin) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a scenario's sections with objects in place of names, and every key with its value in YAML's types."""
    resolved = settings.model_dump(mode="json")
    sections = dict(settings)
    sections["algorithm"], resolved["algorithm"] = object_of(sections["algorithm"], ALGORITHM, own_code, origin)
    for section, key in CHOICES:
        given = getattr(sections[section], key, None)
        if isinstance(given, Mapping):
            made, resolved[section][key] = object_of(given, (section, key), own_code, origin)
            sections[section] = sections[section].model_copy(update={key: made})
    if resolved["training"]["schedule"].get("warmup") == 0:
        # Without this default, settings equal those of runs that are older than the key.
        del resolved["training"]["schedule"]["warmup"]
    return sections, resolved


def _rank(path: Key) -> int:
    """Return the rank of an override: first whole mappings, then names, which clear earlier fields, then fields.

    With this order, `--set algorithm.mu0=1 --set algorithm.name=fedssa` means the same in either order.
    """
    if any(section[: len(path)] == path for section in NAMED_SECTIONS):
        return 0
    return 1 if path[:-1] in NAMED_SECTIONS and path[-1] == "name" else 2


class Assignment(NamedTuple):
    """One override of a key."""

    path: Key
    value: Any
    text: str  # the override as typed, with *** instead of a value that contains a secret


def _parse_set(item: str, places: Mapping[str, str]) -> Assignment:
    path, equals, text = item.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        text = "write it as key.key=value, for example training.lr=0.1"
        raise ScenarioError(text, origin=override_source(item, places))
    try:
        # `strip` also removes spaces that are unknown to YAML, for example from Chinese keyboards and from PDF files.
        value = load_value(text.strip())
    except UNREADABLE:
        raise ScenarioError("the value is not valid YAML", origin=override_source(item, places)) from None
    return Assignment(keys, value, f"{path}=***" if holds_secret(text) else item)


def _apply(raw: dict[str, Any], path: Key, value: Any, origin: Origin) -> None:
    section = raw
    for depth, key in enumerate(path[:-1]):
        if section.get(key) is None:  # the section is missing, or null as in resolved.yaml
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            section_key = ".".join(path[: depth + 1])
            raise origin.error(path, f"{section_key} is not a mapping, so it has no keys; set {section_key} itself")
    if path[:-1] in NAMED_SECTIONS and path[-1] == "name" and section.get("name") != value:
        section.clear()  # another method has other fields
    section[path[-1]] = value


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield (dotted key, value) for every value in nested mappings; lists are YAML text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        yield prefix, yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6).strip()
    else:
        yield prefix, value


@dataclass(frozen=True)
class Paths:
    """Resolves the paths of one scenario: they become absolute, and those of the user's own code are resolved.

    A path in a file is relative to the file's folder; a path of `--set`, or of a mapping in Python, to the current
    folder.
    """

    origin: Origin
    file: Path  # the folder of the scenario's file
    sweep: Path  # the folder of the sweep file, or else of the scenario's file

    def base(self, key: Key) -> Path:
        """Return the folder to which the path of a key is relative.

        In a job, it is the current folder: Ray removes the folder of the scenario, which contains no data.
        """
        if any((folder / JOB_CODE).is_dir() for folder in (self.file, self.sweep)) or self.origin.of_shell(key):
            return Path()
        return self.sweep if self.origin.of_sweep(key) else self.file

    def make_absolute(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Make the paths in `raw`, a scenario's keys, absolute; return dotted key -> path as given."""
        as_given: dict[str, Any] = {}
        for dotted in (*READ, *WRITTEN):
            key = tuple(dotted.split("."))
            section: Any = raw
            for name in key[:-1]:
                section = section.get(name) if isinstance(section, dict) else None
            if not isinstance(section, dict) or (dotted == "data.partition.path" and section.get("name") != "listed"):
                continue
            given = section.get(key[-1])
            if given is not None:
                as_given[dotted] = given
                several = [self._absolute(one, key) for one in (given if isinstance(given, list) else [given])]
                section[key[-1]] = several if isinstance(given, list) else several[0]
        return as_given

    def _absolute(self, given: Any, key: Key) -> Any:
        """Return a path as an absolute path; addresses, run ids and values that are no text stay unchanged."""
        prefix = _DATABASE if key == ("tracking", "uri") else ""
        if not isinstance(given, str) or not given.startswith(prefix):
            return given
        text, mark, query = given.removeprefix(prefix).partition("?") if prefix else (given, "", "")
        path = expanded(text)
        if not text or "://" in text or str(path).startswith("~"):
            return given
        place = (self.base(key) / path).absolute()
        if key == ("init", "run") and not os.path.lexists(place):
            return given
        place = place.resolve() if ".." in place.parts else place
        return f"sqlite:///{place}{mark}{query}" if prefix else str(place)

    def own_code(self, raw: dict[str, Any], known: OwnCode) -> OwnCode:
        """Read the user's own files that a scenario names; in `raw`, replace their paths by their names in the run.

        known: the same files, if they were found before. Raises `ScenarioError`.
        """
        paths: dict[Path, Key] = {}
        decides: dict[Path, bool] = {}  # file -> whether results may depend on it; trackers do not affect results
        for holder, at, key in list(_names(raw, ())):
            reference = Reference.of(holder[at]) if isinstance(holder[at], str) else None
            if reference is None or not reference.is_file:
                continue
            file = self._find(reference, key, known)
            paths.setdefault(file, key)
            decides[file] = decides.get(file, False) or key[:2] != ("tracking", "also")
            holder[at] = reference.name
        try:
            return read_own_code(decides)
        except ScenarioError as error:
            raise self.origin.error(next(iter(paths.values())), error.reason) from error.__cause__

    def _find(self, reference: Reference, key: Key, known: OwnCode) -> Path:
        """Return the file that the value of a key refers to. Raises `ScenarioError` if it does not exist."""
        given = expanded(reference.place)
        folders = list(dict.fromkeys([self.base(key), self.sweep, self.file, Path()]))
        places = [folder / JOB_CODE / given.name for folder in folders]
        places += [Path(known.files[given.name].path)] if given.name in known.files else []
        places += [path for folder in folders for path in (folder / given, folder / CODE / given.name)]
        file = next((path.resolve() for path in places if path.exists() and not path.is_dir()), None)
        if file is None:
            looked = ", ".join(dict.fromkeys(str(folder.absolute()) for folder in folders))
            text = f"{reference.place}:{reference.attribute}".removesuffix(":")
            raise self.origin.error(key, f"{text} given, but there is no such file in {looked}; correct the path")
        return file


def _names(value: Any, key: Key) -> Iterator[tuple[Any, Any, Key]]:
    """Yield (container, key or index in it, full key) for each value that may name the user's own code."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, inner in entries:
        path = (*key, str(at))
        # A setting of a method may be an architecture, such as `small` of FML.
        listed = key[-1:] in (("models",), ("also",)) or key == ("algorithm",)
        if (at == "name" and key) or (listed and isinstance(inner, str)):
            yield value, at, path
        else:
            yield from _names(inner, path)
