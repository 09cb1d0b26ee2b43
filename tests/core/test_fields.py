"""Fields of settings: meanings, ranges and the sentences that refuse a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from raysim.core.fields import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Range,
    WarmupRounds,
    settings_fields,
)


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
    share: Fraction = 0.5
    """A part."""
    decay: NonNegative | None = None
    """Or none."""
    on: bool = True
    """Whether."""
    names: tuple[str, ...] = field(default_factory=lambda: ("x",))
    """Some names."""
    warmup: WarmupRounds = 0
    """Rounds before."""


def test_fields_in_order_with_docs_ranges_and_defaults():
    found = {info.name: info for info in settings_fields(Toy)}
    assert list(found) == ["lr", "rounds", "mode", "share", "decay", "on", "names", "warmup"]
    assert found["lr"].doc == "Step size, per step."
    assert found["rounds"].doc == ""
    assert found["mode"].doc == "Which one."
    assert [found[name].hint for name in ("lr", "rounds", "on")] == [Positive, Count, bool]
    assert [found[name].default for name in ("lr", "mode", "names")] == [0.1, "a", ("x",)]


def test_range():
    for bounds, inside, outside in (
        (Range(gt=0), [1e-300, 5], [0, -1, math.nan]),
        (Range(ge=0, le=1), [0, 0.5, 1], [-1e-9, 1.0000001, math.nan]),
    ):
        assert all(bounds.holds(value) for value in inside)
        assert not any(bounds.holds(value) for value in outside)
