"""Numbers as people read them."""

from __future__ import annotations

import pytest

from raysim.results.units import human_bytes, human_flops, human_seconds, per_cent, plural

CASES = [
    (human_bytes, {0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 12_345_678: "11.8 MiB", 1024**2 - 1: "1.00 MiB"}),
    (human_bytes, {9.6 * 1024: "9.60 KiB", 9.996 * 1024: "10.0 KiB", 99.96 * 1024: "100 KiB", 2**70: "1048576 PiB"}),
    (human_flops, {0: "0 FLOP", 999: "999 FLOP", 1234: "1.23 kFLOP", 1.5e13: "15.0 TFLOP", -1234: "-1.23 kFLOP"}),
    (human_seconds, {0.004: "4 ms", 0.0996: "0.10 s", 9.996: "10.0 s", 59.99: "1 min 00 s", 125: "2 min 05 s"}),
    (human_seconds, {3599.9: "1 h 00 min", 11520: "3 h 12 min", 172_799: "47 h 59 min", 172_800: "2 d 00 h"}),
    (per_cent, {0.5434: "54.3%"}),
    (lambda n: plural(n, "round"), {0: "0 rounds", 1: "1 round", 2: "2 rounds"}),
]


@pytest.mark.parametrize(("function", "texts"), CASES)
def test_numbers_as_text(function, texts):
    assert {n: function(n) for n in texts} == texts
