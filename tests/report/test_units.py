"""Numbers as people read them."""

from __future__ import annotations

import pytest

from raysim.report.units import human_bytes, human_count, human_seconds, plural


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (12_345_678, "11.8 MiB"),
        (1024**2 - 1, "1.00 MiB"),
        (2**40 * 300, "300 TiB"),
        (2**70, "1048576 PiB"),
    ],
)
def test_bytes(n, text):
    assert human_bytes(n) == text


@pytest.mark.parametrize(("n", "text"), [(7, "7"), (999, "999"), (1234, "1.23 k"), (1.5e13, "15.0 T")])
def test_counts(n, text):
    assert human_count(n) == text


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0.004, "4 ms"),
        (0.42, "0.42 s"),
        (12.34, "12.3 s"),
        (59.99, "1 min 00 s"),
        (3599.9, "1 h 00 min"),
        (125, "2 min 05 s"),
        (11520, "3 h 12 min"),
        (190_800, "2 d 05 h"),
    ],
)
def test_seconds(s, text):
    assert human_seconds(s) == text


def test_plural():
    assert [plural(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
