"""`Origin`: the file or override that sets each key of a scenario, for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysim.common.errors import ScenarioError
from raysim.common.text import cut

Key = tuple[str, ...]


def override_key(item: str) -> str:
    """Return the dotted key of an override, such as "training.lr=0.1"."""
    return item.partition("=")[0].strip()


def override_source(item: str, places: Mapping[str, str]) -> str:
    """Return an override and its place, for an error. places: key -> place, for overrides that are not from `--set`."""
    place = places.get(override_key(item), "--set")
    return f"--set {cut(item)}" if place == "--set" else f"{cut(item)} from {place}"


@dataclass(frozen=True)
class Origin:
    """Where each key was set, so that an error names the file or the override."""

    file: str
    sets: Mapping[Key, str]
    places: Mapping[str, str] = field(default_factory=dict)  # dotted key -> place of its override, if not from --set

    def of(self, key: Key) -> str:
        """Return the place that sets a key, or a key inside it: an override, or else the file."""
        path = self._override(key)
        return self.file if path is None else override_source(self.sets[path], self.places)

    def of_shell(self, key: Key) -> bool:
        """Return whether an override on the command line sets a key."""
        path = self._override(key)
        return path is not None and self.places.get(".".join(path), "--set").startswith("--")

    def of_sweep(self, key: Key) -> bool:
        """Return whether an override in a sweep file sets a key."""
        return self._set(key) is not None and not self.of_shell(key)

    def _override(self, key: Key) -> Key | None:
        """Return the override that sets a key, or else a key inside it."""
        return self._set(key) or next((path for path in self.sets if path[: len(key)] == key), None)

    def _set(self, key: Key) -> Key | None:
        return next((path for path in reversed(list(self.sets)) if key[: len(path)] == path), None)

    def error(self, key: Key, text: str, cause: Key = (), kind: type[ScenarioError] = ScenarioError) -> ScenarioError:
        """Return the error about a key. cause: a conflicting key, whose place is also named if an override set it."""
        origin = self.of(cause if cause and self._set(cause) else key)
        return kind(text, key=cut(" ".join(".".join(key).split())) or "scenario", origin=origin)
