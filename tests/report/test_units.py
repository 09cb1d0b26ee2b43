"""Numbers as people read them."""

from __future__ import annotations

import pytest

from raysim.report.units import human_bytes, human_flops, human_seconds, per_cent, plural


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


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 FLOP"), (999, "999 FLOP"), (1234, "1.23 kFLOP"), (1.5e13, "15.0 TFLOP")]
)
def test_operations(n, text):
    assert human_flops(n) == text


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


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0.0996, "0.10 s"),  # 99.6 ms would be 100 ms
        (9.6, "9.60 s"),
        (9.996, "10.0 s"),  # not 10.00 s
        (86_400, "24 h 00 min"),
        (172_799, "47 h 59 min"),
        (172_800, "2 d 00 h"),
    ],
)
def test_seconds_at_the_edges(s, text):
    assert human_seconds(s) == text


def test_three_digits_and_a_sign():
    # 9.6, 9.996, 99.6 and 99.96 KiB: two decimals below 9.995, one below 99.95, else none.
    found = [human_bytes(n * 1024) for n in (9.6, 9.996, 99.6, 99.96)]
    assert found == ["9.60 KiB", "10.0 KiB", "99.6 KiB", "100 KiB"]
    assert human_flops(-1234) == "-1.23 kFLOP"
    assert per_cent(0.5434) == "54.3%"


def test_plural():
    assert [plural(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
