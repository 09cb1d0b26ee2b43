"""Fields of settings: meanings, types, defaults and ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from raysim.core.fields import Count, Positive, Range, settings_fields


@dataclass(frozen=True)
class Base:
    """Something to inherit from."""

    lr: Positive = 0.1
    """Step size,
    per step."""


@dataclass(frozen=True)
class Toy(Base):
    """Some settings."""

    kind: ClassVar[str] = "toy"
    """Not a field."""
    rounds: Count = 3
    mode: Literal["a", "b"] = "a"
    """Which one."""
    names: tuple[str, ...] = field(default_factory=lambda: ("x",))


def test_fields_in_order_with_docs_types_and_defaults():
    found = settings_fields(Toy)
    assert [info.name for info in found] == ["lr", "rounds", "mode", "names"]
    assert [info.doc for info in found[:3]] == ["Step size, per step.", "", "Which one."]
    assert [info.hint for info in found[:2]] == [Positive, Count]
    assert [info.default for info in found] == [0.1, 3, "a", ("x",)]


def test_range():
    for bounds, inside, outside in (
        (Range(gt=0), [1e-300, 5], [0, -1, math.nan]),
        (Range(ge=0, le=1), [0, 0.5, 1], [-1e-9, 1.0000001, math.nan]),
    ):
        assert all(bounds.holds(value) for value in inside)
        assert not any(bounds.holds(value) for value in outside)
