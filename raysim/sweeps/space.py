"""Values that tuning tries: the domain of each key, grids and random draws over several keys, and their edges."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raysim.common.errors import ScenarioError
from raysim.core.seeds import seed_for
from raysim.scenario.yaml_text import shown

Edge = Literal["", "lower", "upper"]
"""The edge of its domain that a value lies on; empty: none."""

NEAR_EDGE = 0.05
"""The part of a range, at both ends, whose values count as on its edge."""

DIGITS = 4
"""Significant digits of a number drawn from a range."""

KINDS = ("log", "linear", "integer")
"""The kinds of ranges: log-uniform, uniform, and uniform over integers; each contains both of its ends."""


@dataclass(frozen=True)
class Values:
    """A list of values."""

    values: tuple[Any, ...]

    @property
    def size(self) -> float:
        """The number of different values."""
        return len(self.values)

    def draw(self, generator: random.Random) -> Any:
        """Draw a value; all have the same probability."""
        return self.values[_below(generator, len(self.values))]

    def ends(self) -> tuple[Any, ...]:
        """Every value: each may be refused by the scenario."""
        return self.values

    def edge(self, value: Any) -> Edge:
        """The edge that a value of a list of at least two numbers lies on; other lists have none."""
        numbers = [one for one in self.values if isinstance(one, int | float) and not isinstance(one, bool)]
        if len(numbers) < len(self.values) or len(numbers) < 2:
            return ""
        return "lower" if value == min(numbers) else "upper" if value == max(numbers) else ""


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`."""

    kind: Literal["log", "linear", "integer"]
    low: float
    high: float

    @property
    def size(self) -> float:
        """The number of different values."""
        return self.high - self.low + 1 if self.kind == "integer" else math.inf

    def draw(self, generator: random.Random) -> float | int:
        """Draw a number: uniformly, or such that its logarithm is uniform."""
        if self.kind == "integer":
            return int(self.low) + _below(generator, int(self.size))
        low, high = self._scaled(self.low), self._scaled(self.high)
        value = low + (high - low) * generator.random()
        return self.rounded(math.exp(value) if self.kind == "log" else value)

    def rounded(self, value: float) -> float:
        """Return a number of the range with at most `DIGITS` significant digits."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def ends(self) -> tuple[Any, ...]:
        """The least and the greatest number."""
        return (int(self.low), int(self.high)) if self.kind == "integer" else (self.low, self.high)

    def edge(self, value: Any) -> Edge:
        """The end of the range that a number is, or that it is near (`NEAR_EDGE`)."""
        low, high, at = (self._scaled(one) for one in (self.low, self.high, value))
        near = NEAR_EDGE * (high - low)
        return "lower" if at <= low + near else "upper" if at >= high - near else ""

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.kind == "log" else value


Domain = Values | Range
Space = Mapping[str, Domain]
"""Key of the scenario -> the values that it may have."""


def domain(raw: Any, key: str, file: str) -> Domain:
    """Parse a list of values, or a range such as `{log: [0.001, 1]}`. Raises `ScenarioError`."""
    if isinstance(raw, list) and raw:
        if any(one in raw[:i] for i, one in enumerate(raw)):
            raise ScenarioError(f"{shown(raw)} given; give each value once", key=key, origin=file)
        return Values(tuple(raw))
    if isinstance(raw, dict) and len(raw) == 1:
        ((kind, ends),) = raw.items()
        if kind in KINDS and isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends)):
            low, high = ends
            if not low < high:
                raise ScenarioError(f"{shown(raw)} given; the first number must be less", key=key, origin=file)
            if kind == "log" and low <= 0:
                text = f"{shown(raw)} given; a log range needs two numbers greater than 0"
                raise ScenarioError(text, key=key, origin=file)
            if kind == "integer" and not all(isinstance(end, int) for end in ends):
                raise ScenarioError(f"{shown(raw)} given; give two integers", key=key, origin=file)
            return Range(kind, low, high)
    ranges = ", ".join(f"{{{kind}: [LOW, HIGH]}}" for kind in KINDS)
    raise ScenarioError(f"{shown(raw)} given; give a list of values, or a range: {ranges}", key=key, origin=file)


def points(space: Space) -> float:
    """The number of different points of a space; infinite if a key has a range of real numbers."""
    return math.prod(one.size for one in space.values())


def grid(space: Mapping[str, Values]) -> list[dict[str, Any]]:
    """Every combination of the values; those of the last key change first."""
    lists = (one.values for one in space.values())
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]


def draws(space: Space, seed: int, count: int) -> list[dict[str, Any]]:
    """Draw different points of a space, which must have as many.

    The value of a key in point i depends only on the seed, the key, its domain and i, as long as no point is drawn
    twice. So methods that share a range try the same numbers of it: none wins by a luckier draw. A greater `count` adds
    points and keeps the others.
    """
    drawn: list[dict[str, Any]] = []
    for trial in range(count):
        for attempt in itertools.count():  # ends: the space has `count` points, each with a probability above 0
            point = {
                key: one.draw(random.Random(seed_for(seed, "tune", key, trial, attempt))) for key, one in space.items()
            }
            if point not in drawn:
                drawn.append(point)
                break
    return drawn


def corners(space: Space) -> list[dict[str, Any]]:
    """Points that together have every value of every list, and both ends of every range."""
    ends: Sequence[tuple[Any, ...]] = [one.ends() for one in space.values()]
    number = max(map(len, ends), default=0)
    return [{key: of[i % len(of)] for key, of in zip(space, ends, strict=True)} for i in range(number)]


def _below(generator: random.Random, count: int) -> int:
    """Draw an integer from 0 to `count` - 1. Other versions of Python may draw others in `randrange`."""
    return min(int(generator.random() * count), count - 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
