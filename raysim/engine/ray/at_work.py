"""Detect which processes use a CPU, to distinguish busy actors from stopped or hanging ones."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from time import sleep

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WATCH_S = 1.0
"""Seconds for which processes are watched."""

USED_S = 0.03
"""Seconds of CPU time within `WATCH_S` that show work: Ray's own threads use less in an idle process."""

ANSWER_S = 20.0
"""Seconds beyond `WATCH_S` within which nodes must answer: each starts a process first."""


def at_work(processes: Mapping[str, Collection[int]]) -> dict[str, Collection[int]]:
    """Return the processes that use a CPU, by node. A node that does not answer is missing.

    processes: Ray's id of a node -> process ids on it. This takes `WATCH_S` and the start of a process.
    """
    watched = {}
    for node, pids in processes.items():
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        watch = ray.remote(at_work_here).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
        watched[watch.remote(pids)] = node
    answered, _ = ray.wait(list(watched), num_returns=len(watched), timeout=WATCH_S + ANSWER_S)
    working: dict[str, Collection[int]] = {}
    for answer in answered:
        try:
            working[watched[answer]] = ray.get(answer)
        except RayError:  # for example, the node is gone
            continue
    return working


def at_work_here(pids: Collection[int]) -> list[int]:
    """Return the ids among `pids`, processes of this machine, that use a CPU."""
    before = {pid: _cpu_s(pid) for pid in pids}
    sleep(WATCH_S)
    return [pid for pid in pids if _cpu_s(pid) - before[pid] >= USED_S]


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children, such as data loaders, so far; 0 without such a process.

    The time of children that have ended is included, so that the sum never falls.
    """
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used = one.cpu_times()
                seconds += used.user + used.system + used.children_user + used.children_system
    return seconds
