"""The paths in a scenario. When it is read, paths become absolute, and paths of the user's own code are resolved.

A path in a file is relative to the file's folder; a path of `--set`, or of a mapping in Python, to the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.text import expanded
from raysim.plugins.own_code import CODE, JOB_CODE, OwnCode
from raysim.plugins.reading import read_own_code
from raysim.plugins.registry import Reference
from raysim.scenario.origin import Key, Origin

READ = ("data.path", "data.root", "data.partition.path", "system.trace", "inputs", "init.run")
"""Keys whose values are paths that a run reads."""

WRITTEN = ("output", "tracking.uri", "checkpoint.folder")
"""Keys whose values are paths to which a run writes."""

_DATABASE = "sqlite:///"


@dataclass(frozen=True)
class Paths:
    """Resolves the paths of one scenario."""

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
