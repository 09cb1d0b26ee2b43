"""Ray processes that raysim once started and whose driver is dead: found by a mark in their environment.

A driver that is killed (`kill -9`, out of memory) cannot stop its Ray. What it started carries its pid and its start in
`RAYSIM_DRIVER`, so the next run can say what is left and how to end it. Nothing here ends a process.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import psutil

VARIABLE = "RAYSIM_DRIVER"
"""`<pid>:<start>` of the driver that started a process; the start in seconds since the machine booted."""

KEEP_ENVIRONMENT = "SPT_NOENV"
"""Ray's processes rename themselves (`ray::ClientActor`) by writing over their command line and, without this variable,
over their environment; two of them outlive a killed driver and would have lost the mark."""

RAY = re.compile(
    r"^\S*\b(raylet|gcs_server)\b"  # both are executables of Ray
    r"|^ray(::|-dashboard)"  # actors, idle workers, agents, which rename themselves
    r"|/ray/(_private|autoscaler|dashboard|util)/|\bray\.(dashboard|util)\."  # Python programs of Ray
)
"""Command lines of Ray's processes. Others may carry the mark too, a raysim that a raysim started among them."""

AGENTS = frozenset({"ray::DashboardAgent", "ray::RuntimeEnvAgent"})
"""Of a killed driver's processes only these were still there after five seconds, for a minute and deaf to SIGTERM."""

SAME_START_S = 0.5
"""Two starts of one pid that are closer than this are one process; a pid does not come back so soon."""

_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True)
class OrphanedProcesses:
    """What a dead driver left behind on this machine."""

    driver: int  # pid; by now it may be another process's
    pids: tuple[int, ...]
    names: tuple[str, ...]  # in the order of `pids`
    memory_mb: float  # resident and not shared, in MiB
    age_s: float  # since the oldest of them started; when the driver died is recorded nowhere

    @property
    def transient(self) -> bool:
        """Whether only agents are left, which Ray lets go about a minute after the driver died."""
        return set(self.names) <= AGENTS

    @property
    def sentence(self) -> str:
        """What is left and the command that ends it, in one line."""
        count = len(self.pids)
        names = ", ".join(name if n == 1 else f"{n} x {name}" for name, n in Counter(self.names).items())
        return (
            f"a raysim driver that was killed (pid {self.driver}) left {count} Ray process{'es' if count > 1 else ''} "
            f"with {self.memory_mb:.0f} MiB of memory: {names}; "
            f"{'these end within a minute, or' if self.transient else 'end them'} with: "
            f"kill -9 {' '.join(map(str, self.pids))}"
        )


def mark(environ: MutableMapping[str, str]) -> None:
    """Let every process that inherits `environ` say that this process started it; call before `ray.init`.

    A mark that was there already is replaced: it is that of a raysim which started this one.
    """
    environ[VARIABLE] = f"{os.getpid()}:{_start_s(psutil.Process()):.2f}"
    environ[KEEP_ENVIRONMENT] = "1"


def orphaned_processes() -> list[OrphanedProcesses]:
    """This user's Ray processes whose raysim driver is dead, by driver.

    Processes that vanish meanwhile, that may not be read, or that live in a container of their own (where pids mean
    something else) are not counted. Takes about 10 ms per 100 processes.
    """
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if RAY.search(" ".join(process.cmdline())) and process.uids().real == os.getuid():
                driver = process.environ().get(VARIABLE)
                if driver is not None and _namespace(process.pid) == _namespace(os.getpid()):
                    found.setdefault(driver, []).append(process)
    left = [_leftover(driver, members) for driver, members in found.items() if not _lives(driver)]
    return sorted((one for one in left if one is not None), key=lambda one: one.driver)


def _leftover(driver: str, members: list[psutil.Process]) -> OrphanedProcesses | None:
    """Those of a dead driver's processes that are still there; None when the last has just gone."""
    rows: list[tuple[int, str, float, float]] = []
    for process in members:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            private = memory.rss - getattr(memory, "shared", 0)
            rows.append((process.pid, _name(process), private / 2**20, process.create_time()))
    if not rows:
        return None
    pids, names, memory_mb, starts = zip(*sorted(rows), strict=True)
    return OrphanedProcesses(
        int(driver.partition(":")[0]), pids, names, sum(memory_mb), max(0.0, time.time() - min(starts))
    )


def _lives(driver: str) -> bool:
    """Whether the marked driver still runs. A mark that cannot be read is nobody's, so nothing is said of it."""
    try:
        pid, start = driver.split(":")
        process = psutil.Process(int(pid))
        return process.status() not in _DEAD and abs(_start_s(process) - float(start)) < SAME_START_S
    except ValueError:
        return True
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _start_s(process: psutil.Process) -> float:
    """When a process started, in seconds since the machine booted: unlike the time of day, this never jumps."""
    booted = psutil.boot_time()
    return float(process.create_time() - booted)


def _name(process: psutil.Process) -> str:
    """A name that says more than "python": that of the program it runs."""
    words = process.cmdline()
    program = next((word for word in words if word.endswith(".py")), words[0] if words else process.name())
    return Path(program.split()[0]).name if program.strip() else str(process.name())


def _namespace(pid: int) -> str:
    """The process's pid namespace, empty where there is no such thing."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""
