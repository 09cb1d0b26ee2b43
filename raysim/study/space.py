"""The values that tuning tries: the domain of each key, grids and random draws, and the edges of domains."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raysim.common.errors import ScenarioError
from raysim.core.seeds import seed_for
from raysim.scenario.yaml_text import shown

Edge = Literal["", "lower", "upper"]
"""The edge of its domain on which a value lies; empty: none."""

NEAR_EDGE = 0.05
"""The share of a range, at each of its two ends, in which a value counts as on the edge."""

DIGITS = 4
"""Number of significant digits of a value drawn from a range."""

ATTEMPTS = 1000
"""Maximum number of attempts to draw a new point. A narrow range has few numbers with `DIGITS` digits."""

KINDS = ("log", "linear", "integer")
"""The kinds of ranges: log-uniform, uniform, and uniform over integers. Both ends belong to the range."""


@dataclass(frozen=True)
class Values:
    """A list of values."""

    values: tuple[Any, ...]

    @property
    def size(self) -> float:
        """The number of distinct values."""
        return len(self.values)

    def at(self, part: float) -> Any:
        """Return the value at a relative position in the list, from 0 to 1."""
        return self.values[_index(part, len(self.values))]

    def __str__(self) -> str:
        """Return the list as it is written in a sweep file."""
        return shown(list(self.values))

    def edge(self, value: Any) -> Edge:
        """Return the edge on which a value lies, in a list of at least three numbers; "" for other lists."""
        numbers = [one for one in self.values if isinstance(one, int | float) and not isinstance(one, bool)]
        if len(numbers) < len(self.values) or len(numbers) < 3:
            return ""
        return "lower" if value == min(numbers) else "upper" if value == max(numbers) else ""


@dataclass(frozen=True)
class ValueRange:
    """All numbers from `low` to `high`."""

    kind: Literal["log", "linear", "integer"]
    low: float
    high: float

    @property
    def size(self) -> float:
        """The number of distinct values; infinite for real numbers."""
        return self.high - self.low + 1 if self.kind == "integer" else math.inf

    def at(self, part: float) -> float | int:
        """Return the number at a relative position in the range, from 0 to 1; for `log`, on a logarithmic scale."""
        if self.kind == "integer":
            return int(self.low) + _index(part, int(self.size))
        low, high = self._scaled(self.low), self._scaled(self.high)
        value = low + (high - low) * part
        return self.rounded(math.exp(value) if self.kind == "log" else value)

    def rounded(self, value: float) -> float:
        """Return the nearest number in the range with at most `DIGITS` significant digits."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        """Return the range as it is written in a sweep file."""
        return shown({self.kind: [self.low, self.high]})

    def edge(self, value: Any) -> Edge:
        """Return the end of the range that a number equals or is near to (`NEAR_EDGE`); "" for other numbers."""
        low, high, at = (self._scaled(one) for one in (self.low, self.high, value))
        near = NEAR_EDGE * (high - low)
        return "lower" if at <= low + near else "upper" if at >= high - near else ""

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.kind == "log" else value


Domain = Values | ValueRange
Space = Mapping[str, Domain]
"""Key of the scenario -> its domain."""


def domain(raw: Any, key: str, file: str) -> Domain:
    """Parse a list of values, or a range such as `{log: [0.001, 1]}`. Raises `ScenarioError`."""
    if isinstance(raw, list) and raw and not any(one in raw[:i] for i, one in enumerate(raw)):
        return Values(tuple(raw))
    if isinstance(raw, dict) and len(raw) == 1:
        ((kind, ends),) = raw.items()
        number = int if kind == "integer" else (int, float)
        if kind in KINDS and isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, number) for end in ends):
            low, high = ends
            if low < high and (kind != "log" or low > 0):
                return ValueRange(kind, low, high)
    raise ScenarioError(
        f"{shown(raw)} given; give a list of different values, or a range from a smaller to a greater number: {{log: "
        "[LOW, HIGH]} with numbers greater than 0, {linear: [LOW, HIGH]}, or {integer: [LOW, HIGH]} with integers",
        key=key,
        origin=file,
    )


def number_of_points(space: Space) -> float:
    """Return the number of distinct points of a space; infinite if a domain is a range of real numbers."""
    return math.prod(one.size for one in space.values())


def grid(space: Mapping[str, Values]) -> list[dict[str, Any]]:
    """Return every combination of the values. The values of the last key change first."""
    lists = (one.values for one in space.values())
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]


def draws(space: Space, seed: int, count: int) -> list[dict[str, Any]]:
    """Draw `count` distinct points of a space that has at least as many.

    Few points cover each range: of the first N, for N = 2, 4, 8 and so on, one lies in each of N equal parts, and no
    two are nearer than 1 / N. A value of a list comes twice only after all others. The order differs by key. A point
    that was drawn before is replaced by a random one.

    The value of a key in point i depends only on the seed, the key, its domain and i, as long as no point is drawn
    twice. So methods that share a range try the same numbers of it: none wins by a luckier draw. A greater `count` adds
    points and keeps the others.
    """
    covering = {key: _covering(one, random.Random(seed_for(seed, "tune", key))) for key, one in space.items()}
    drawn: list[dict[str, Any]] = []
    for trial in range(count):
        point = {key: next(values) for key, values in covering.items()}
        for attempt in range(ATTEMPTS):
            if point not in drawn:
                break
            generators = {key: random.Random(seed_for(seed, "tune", key, trial, attempt)) for key in space}
            point = {key: one.at(generators[key].random()) for key, one in space.items()}
        drawn.append(point)
    return drawn


def _covering(domain: Domain, generator: random.Random) -> Iterator[Any]:
    """Yield random values that cover a domain. In a finite domain, all values come once before any is repeated."""
    if isinstance(domain, ValueRange) and domain.kind != "integer":
        yield from map(domain.at, _parts(generator))
    while True:
        left = int(domain.size)
        drawn: set[int] = set()
        for part in _parts(generator):
            if len(drawn) == left:
                break
            if (index := _index(part, left)) not in drawn:
                drawn.add(index)
                yield domain.at(part)


def _parts(generator: random.Random) -> Iterator[float]:
    """Yield random numbers from 0 to 1. For each power of two N, the first N numbers lie in N different equal parts.

    They are a grid of N points with a random offset, refined where no number lies yet: so no two are nearly equal.
    """
    offset = generator.random()
    yield offset
    number = 1
    while True:
        number *= 2
        # `shuffle` may give another order in other versions of Python.
        for odd in sorted(range(1, number, 2), key=lambda _: generator.random()):
            yield (offset + odd / number) % 1.0


def _index(part: float, count: int) -> int:
    """Divide [0, 1] into `count` equal parts; return the index of the part that contains a number."""
    return min(int(part * count), count - 1)
