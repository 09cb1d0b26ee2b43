"""Time the rounds of raysim and of another program alternately, so that other load on the machine affects both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import psutil

Round = tuple[float, float]
"""Seconds, and CPU seconds of all processes of one side."""


@contextmanager
def alternating(in_process: bool, rounds: int, other: Callable[[], Any], other_pid: int) -> Iterator[list[Round]]:
    """Call `other` whenever raysim begins a round of a run in this process; raysim waits meanwhile.

    Yields raysim's rounds, which are complete if the run has one round more: the last ends when the next one begins.
    """
    if in_process:
        from raysim.engine.inprocess import InProcessBackend as Backend
    else:
        from raysim.engine.ray.backend import RayBackend as Backend  # type: ignore[assignment]
    send, done = Backend.send, list[Round]()  # a round begins with `send`
    begun_s = before_s = 0.0

    def begin(backend: Any, t: int, cohort: Any) -> Any:
        nonlocal begun_s, before_s
        now_s, cpu_s = time.perf_counter(), cpu_seconds(other_pid)
        if t > 1:
            done.append((now_s - begun_s, cpu_s - before_s))
        if t <= rounds:
            other()
        begun_s, before_s = time.perf_counter(), cpu_s
        return send(backend, t, cohort)

    with mock.patch.object(Backend, "send", begin):
        yield done


def cpu_seconds(without: int | None = None) -> float:
    """Return the CPU seconds of this process and its descendants so far, except those of one process."""
    total, me = 0.0, psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        if process.pid != without:
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
    return total
