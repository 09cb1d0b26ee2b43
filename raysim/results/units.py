"""Formats numbers for people: bytes, counts, seconds, accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit for bytes, operations or time."""

    name: str
    size: float  # in bytes, operations or seconds


BYTES = [Unit(name, 1024.0**i) for i, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))]
FLOP = [Unit(f"{prefix}FLOP", 1000.0**i) for i, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))]
TIME = [Unit("s", 1), Unit("min", 60), Unit("h", 3600), Unit("days", 86400)]


def human_bytes(n: float) -> str:
    """Format `n` bytes in powers of 1024, such as "12.3 MiB"."""
    return _scaled(n, BYTES)


def human_flops(n: float) -> str:
    """Format `n` operations in powers of 1000: "7 FLOP", "1.23 GFLOP"."""
    return _scaled(n, FLOP)


def human_seconds(s: float) -> str:
    """Format `s` seconds as "0.42 s", "12.3 s", "2 min 05 s", "3 h 12 min" or "2 d 05 h"."""
    if s < 0.0995:
        return f"{s * 1000:.0f} ms"
    if s < 59.95:
        return f"{s:.2f} s" if s < 9.995 else f"{s:.1f} s"
    minutes, seconds = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24:02d} h"


def plural(n: int, what: str) -> str:
    """Format a count with its noun, such as "1 round" or "2 rounds"."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def per_cent(fraction: float) -> str:
    """Format an accuracy in [0, 1] as "54.3%"."""
    return f"{100 * fraction:.1f}%"


def _scaled(n: float, units: Sequence[Unit]) -> str:
    # The next unit is used from 999.5 on, which would be rounded to 1000.
    unit = next((one for one in reversed(units) if abs(n) >= 0.9995 * one.size), units[0])
    value = n / unit.size
    # Three digits are enough. A number that was not divided is whole, and has no decimals.
    digits = 0 if unit is units[0] or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {unit.name}"
