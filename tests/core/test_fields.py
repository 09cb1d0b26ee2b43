"""Fields of settings: meanings, ranges and the sentences that refuse a value."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from raysim.core.fields import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Range,
    WarmupRounds,
    check_settings,
    in_words,
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


@dataclass(frozen=True)
class Required:
    """One field without a default."""

    count: Count
    """How many."""


def test_fields_in_order_with_docs_ranges_and_defaults():
    found = {info.name: info for info in settings_fields(Toy)}
    assert list(found) == ["lr", "rounds", "mode", "share", "decay", "on", "names", "warmup"]
    assert found["lr"].doc == "Step size, per step."
    assert found["rounds"].doc == ""
    assert found["mode"].doc == "Which one."
    assert [found[name].hint for name in ("lr", "rounds", "on")] == [Positive, Count, bool]
    assert [found[name].default for name in ("lr", "mode", "names")] == [0.1, "a", ("x",)]
    (required,) = settings_fields(Required)
    assert required.default is MISSING


def test_allowed_in_words():
    allowed = {info.name: info.allowed for info in settings_fields(Toy)}
    assert allowed["lr"] == "a number greater than 0"
    assert allowed["rounds"] == "a whole number at least 1"
    assert allowed["mode"] == "a, b"
    assert allowed["share"] == "a number at least 0 and at most 1"
    assert allowed["on"] == "true or false"
    assert allowed["decay"] == "a number at least 0 or null"
    assert allowed["warmup"] == "a whole number at least 0"
    assert in_words(tuple[int, ...]) == in_words(list[int]) == "a list, each a whole number"
    assert (in_words(tuple), in_words(list), in_words(dict)) == ("a list", "a list", "a mapping")
    assert in_words(tuple[int, str]) == "a list of 2: a whole number, text"


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Range(gt=0), [1e-300, 5], [0, -1]),
        (Range(ge=1), [1, 2], [0.999]),
        (Range(ge=0, le=1), [0, 0.5, 1], [-1e-9, 1.0000001]),
        (Range(), [-1e300, 0, 1e300], []),
    ],
)
def test_range(bounds: Range, inside: list[float], outside: list[float]):
    assert all(bounds.holds(value) for value in inside)
    assert not any(bounds.holds(value) for value in outside)
    assert not bounds.holds(float("nan")) or bounds == Range()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lr": 0.0}, "lr: 0.0 given; allowed: a number greater than 0"),
        ({"rounds": 0}, "rounds: 0 given; allowed: a whole number at least 1"),
        ({"mode": "c"}, "mode: 'c' given; allowed: a, b"),
        ({"share": 1.5}, "share: 1.5 given; allowed: a number at least 0 and at most 1"),
        ({"lr": float("nan")}, "lr: nan given; allowed: a number greater than 0"),
    ],
)
def test_check_settings_names_field_value_and_what_is_allowed(given: dict[str, Any], sentence: str):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        check_settings(Toy(**given))
