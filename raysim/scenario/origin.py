"""`Origin`: where each key of a scenario came from, for the sentence about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from raysim.common.errors import ScenarioError
from raysim.common.text import cut
from raysim.scenario.yaml_text import UNREADABLE, node_at

Key = tuple[str, ...]


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
