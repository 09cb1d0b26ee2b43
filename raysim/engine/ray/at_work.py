"""Which processes use a CPU: tells actors that work for long from those that are stopped or wait for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from time import sleep

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WATCH_S = 1.0
"""How long processes are watched."""

USED_S = 0.03
"""Seconds of CPU time within `WATCH_S` from which a process is at work: Ray's own threads use less in an idle one."""

ANSWER_S = 20.0
"""How long nodes may take to answer beyond that: each starts a process first."""


def at_work(processes: Mapping[str, Collection[int]]) -> dict[str, Collection[int]]:
    """Those of these processes that are at work. A node that does not answer has none.

    processes: Ray's id of a node -> process ids there. Takes `WATCH_S` and the start of a process.
    """
    watched = {}
    for node, pids in processes.items():
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        watch = ray.remote(at_work_here).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
        watched[watch.remote(pids)] = node
    answered, _ = ray.wait(list(watched), num_returns=len(watched), timeout=WATCH_S + ANSWER_S)
    found: dict[str, Collection[int]] = {}
    for answer in answered:
        try:
            found[watched[answer]] = ray.get(answer)
        except RayError:  # the node is gone, for one
            continue
    return found


def at_work_here(pids: Collection[int]) -> list[int]:
    """Those of these processes of this machine that are at work."""
    before = {pid: _cpu_s(pid) for pid in pids}
    sleep(WATCH_S)
    return [pid for pid in pids if _cpu_s(pid) - before[pid] >= USED_S]


def _cpu_s(pid: int) -> float:
    """CPU time that a process and its children, such as data loaders, have used so far; 0: there is none."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            used = one.cpu_times()
            seconds += used.user + used.system
    return seconds
