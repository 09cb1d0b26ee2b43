"""The trackers in `tracking.also`. Each entry is a name, or a mapping with a `name` and the tracker's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, is_dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.results import ClientRow, RunCard, Status, Tracker
from raysim.plugins.calling import failing
from raysim.results.tensorboard import TensorBoard
from raysim.results.wandb import Wandb
from raysim.scenario.named import checked_fields, class_of, made, split_name
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario

TRACKERS: Mapping[str, type] = {"tensorboard": TensorBoard, "wandb": Wandb}
"""raysim's own trackers. Each needs the package with the same name, which the extra with the same name installs."""


def check_trackers(parsed: ParsedScenario) -> None:
    """Raise `ScenarioError` if an entry names no tracker, or has a wrong option for a tracker that is a dataclass.

    Imports custom trackers, but creates none. So wrong options for other classes are found when the run starts.
    """
    for key, entry in _entries(parsed):
        _maker(parsed, key, entry)


def check_packages(parsed: ParsedScenario) -> None:
    """Raise `ScenarioError` if a tracker's package is not installed here."""
    for key, entry in _entries(parsed):
        name = entry.get("name")
        if isinstance(name, str) and name in TRACKERS and find_spec(name) is None:
            raise parsed.origin.error(
                key, f"the tracker {name} needs the package {name}; install it with: pip install 'raysim[{name}]'"
            )


def trackers_of(parsed: ParsedScenario, given: Sequence[Tracker] = ()) -> list[Tracker]:
    """Return the trackers in `given` and in the scenario. Exceptions of the scenario's trackers name the tracker.

    Raises `ScenarioError` if one lacks a method, `HookError` if its constructor raises.
    """
    check_packages(parsed)
    trackers = [_complete(one, getattr(one, "__name__", type(one).__name__), "trackers") for one in given]
    for key, entry in _entries(parsed):
        name = str(entry["name"])
        trackers.append(
            NamedTracker(name, _complete(_maker(parsed, key, entry)(), name, ".".join(key), parsed.origin.of(key)))
        )
    return trackers


def _complete(tracker: Any, name: str, key: str, origin: str = "") -> Tracker:
    """Return a tracker. Raises `ScenarioError` if it is a class instead of an object, or lacks a method."""
    hooks = "open", "log", "close"
    if isinstance(tracker, type) or not all(callable(getattr(tracker, hook, None)) for hook in hooks):
        text = f"{name} is not an object with the methods {', '.join(hooks)}; give a tracker"
        raise ScenarioError(text, key=key, origin=origin)
    complete: Tracker = tracker
    return complete


def _entries(parsed: ParsedScenario) -> list[tuple[Key, Mapping[str, Any]]]:
    given = parsed.tracking.also
    entries = ({"name": one} if isinstance(one, str) else one for one in given)
    return [(("tracking", "also", str(i)), entry) for i, entry in enumerate(entries)]


def _maker(parsed: ParsedScenario, key: Key, entry: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that creates an entry's tracker. Raises `ScenarioError` if no tracker fits."""
    origin = parsed.origin
    name, fields = split_name(entry, key, origin)
    cls = class_of(name, "trackers", TRACKERS, key, parsed.own_code, origin)
    if isinstance(cls, type) and is_dataclass(cls):
        fields = checked_fields(cls, name, fields, key, origin).model_dump()
    return partial(made, cls, fields, key, origin)


@dataclass
class NamedTracker:
    """A tracker that a scenario names. Its exceptions become a `HookError` with the tracker's name."""

    name: str
    tracker: Tracker

    def open(self, card: RunCard) -> None:
        """See `Tracker.open`."""
        with self._named("open"):
            self.tracker.open(card)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """See `Tracker.log`."""
        with self._named("log"):
            self.tracker.log(t, values, clients)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """See `Tracker.close`."""
        with self._named("close"):
            self.tracker.close(status, summary)

    def _named(self, hook: str) -> AbstractContextManager[None]:
        return failing(f"{self.name}: {hook} failed", "tracking.also")
