"""When to say that an answer is overdue: an actor that is stopped, or a method that hangs, says nothing of itself."""

from __future__ import annotations

STALL_S = 30.0
"""Seconds beyond the longest wait so far of the same kind, from which on a wait is a stall."""

AGAIN = 4.0
"""A stall is told again when it has lasted this many times as long."""


def overdue(silent_s: float, longest_s: float | None, told_s: float | None, patience_s: float = STALL_S) -> bool:
    """Whether to tell now of a wait that has lasted `silent_s`.

    longest_s: the longest wait of this kind that ended with an answer; None: this is the first, of which nobody knows
    how long it should take, so it gets twice the patience. told_s: how long it had lasted when it was last told; None:
    not yet.
    """
    if told_s is not None:
        return silent_s >= AGAIN * told_s
    return silent_s >= (2 * patience_s if longest_s is None else longest_s + patience_s)
