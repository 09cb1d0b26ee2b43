"""`Origin`: the file or `--set` override that each key of a scenario came from, for error messages."""

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
    """The source of each key, so that an error names the file or the override."""

    file: str
    text: str  # of the file
    sets: Mapping[Key, str]

    def of(self, key: Key) -> str:
        """Return the origin of a key: the `--set` override that gave it, or the file.

        For a section that the file lacks, it is the override that gave a key in the section.
        """
        path = self._set(key)
        if path is None and node_at(self.text, key) is None:
            path = next((path for path in self.sets if path[: len(key)] == key), None)
        return self.file if path is None else f"--set {cut(self.sets[path])}"

    def written(self, key: Key) -> str:
        """Return an unquoted value as the user wrote it, such as 1e3 for 1000.0; empty if it is not found."""
        path = self._set(key)
        text = self.text if path is None else self.sets[path].partition("=")[2]
        try:
            node = node_at(text, key[len(path or ()) :])
        except UNREADABLE:  # the text has *** in place of a secret
            return ""
        return node.value if isinstance(node, yaml.ScalarNode) and node.style is None else ""

    def _set(self, key: Key) -> Key | None:
        return next((path for path in reversed(list(self.sets)) if key[: len(path)] == path), None)

    def error(self, key: Key, text: str, cause: Key = (), kind: type[ScenarioError] = ScenarioError) -> ScenarioError:
        """Return the error about a key. cause: a conflicting key; the error names its origin if `--set` gave it."""
        origin = self.of(cause if cause and self._set(cause) else key)
        return kind(text, key=cut(" ".join(".".join(key).split())) or "scenario", origin=origin)
