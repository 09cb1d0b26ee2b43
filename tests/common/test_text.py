"""Texts of messages."""

from __future__ import annotations

from raysim.common.text import distinct


def test_duplicates_are_numbered() -> None:
    assert distinct(["fedgh", "fd", "fedgh", "fedgh"]) == ["fedgh", "fd", "fedgh-2", "fedgh-3"]
