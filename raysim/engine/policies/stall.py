"""When to report that an answer is overdue: an actor that is stopped, or a method that hangs, raises no error."""

from __future__ import annotations

STALL_S = 30.0
"""Seconds beyond the longest wait so far of the same kind after which a wait is a stall."""

REPEAT_FACTOR = 4.0
"""A stall is reported again when it has lasted this many times as long."""


def is_stalled(
    waited_s: float, longest_s: float | None, reported_s: float | None, threshold_s: float = STALL_S
) -> bool:
    """Whether to report now that a call has waited for `waited_s`.

    longest_s: the longest wait of this kind that ended with an answer; None: this wait is the first, which gets twice
    the threshold. reported_s: how long this wait had lasted at its last report; None: it has not been reported.
    """
    if reported_s is not None:
        return waited_s >= REPEAT_FACTOR * reported_s
    return waited_s >= (2 * threshold_s if longest_s is None else longest_s + threshold_s)
