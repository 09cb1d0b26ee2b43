"""What a killed driver leaves behind is found by its mark; what a living one runs is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from raysim.engine.ray.orphans import RAY, VARIABLE, OrphanedProcesses, mark, orphaned_processes

SLEEP = "import time; time.sleep(120)"
DRIVER = f"""
import os, subprocess, sys, time
from raysim.engine.ray.orphans import mark
mark(os.environ)
for name in sys.argv[1:]:
    one = subprocess.Popen([name, "-c", {SLEEP!r}], executable=sys.executable)
    print(one.pid, flush=True)
time.sleep(120)
"""


@dataclass
class Family:
    """Python programs under any name, and what they start; `end` ends all of them."""

    started: list[subprocess.Popen[str]] = field(default_factory=list)
    theirs: list[psutil.Process] = field(default_factory=list)

    def program(self, name: str, *args: str, **environ: str) -> subprocess.Popen[str]:
        """A Python whose command line begins with `name`, as Ray's executables and actors have theirs."""
        home = {"PYTHONHOME": sys.base_prefix}  # else Python looks for its library where `name` would be
        one = subprocess.Popen(
            [name, "-c", *args],
            executable=sys.executable,
            env=os.environ | home | environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(one)
        settle(one.pid)
        return one

    def driver(self, *names: str, **environ: str) -> tuple[subprocess.Popen[str], list[int]]:
        """A program that marks and then starts sleeping ones with these names; itself and their pids."""
        paths = os.pathsep.join(path for path in sys.path if path)
        one = self.program(sys.executable, DRIVER, *names, PYTHONPATH=paths, **environ)
        assert one.stdout is not None
        pids = [int(one.stdout.readline()) for _ in names]
        self.theirs += map(settle, pids)
        return one, pids

    def end(self) -> None:
        for process in self.theirs:
            if process.is_running():
                process.kill()
        for one in self.started:
            one.kill()
            one.communicate()


@pytest.fixture
def family() -> Iterator[Family]:
    one = Family()
    yield one
    one.end()


def settle(pid: int) -> psutil.Process:
    """Wait until a process that has just been started shows its environment: a moment after it can be seen."""
    process = psutil.Process(pid)
    until = time.monotonic() + 120
    while not process.environ() and time.monotonic() < until:
        time.sleep(0.001)
    return process


def of(driver: int) -> OrphanedProcesses | None:
    """What is left of one driver: other Rays may run on this machine."""
    return next((one for one in orphaned_processes() if one.driver == driver), None)


def test_a_driver_that_was_killed(family: Family) -> None:
    driver, pids = family.driver("/opt/ray/raylet", "ray::ClientActor", "ray::ClientActor", "sleeper")
    assert of(driver.pid) is None
    driver.kill()
    driver.wait()
    found = of(driver.pid)
    assert found is not None
    assert sorted(found.pids) == sorted(pids[:3])  # the sleeper is no process of Ray's
    assert sorted(found.names) == ["ray::ClientActor", "ray::ClientActor", "raylet"]
    assert 0 < found.age_s < 60
    assert found.memory_mb > 3
    assert not found.transient
    assert "\n" not in found.sentence
    assert f"(pid {driver.pid}) left 3 Ray processes" in found.sentence
    assert "2 x ray::ClientActor" in found.sentence
    assert found.sentence.endswith(f"; end them with: kill -9 {' '.join(map(str, found.pids))}")


def test_a_driver_that_nobody_has_buried_is_dead_too(family: Family) -> None:
    driver, pids = family.driver("raylet")
    driver.kill()
    while psutil.Process(driver.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    found = of(driver.pid)
    assert found is not None
    assert list(found.pids) == pids


def test_a_raysim_within_a_raysim_has_its_own_mark(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "x")  # undone after the test, together with what `mark` sets
    monkeypatch.setenv("SPT_NOENV", "1")
    mark(os.environ)
    inner, pids = family.driver("raylet")
    assert psutil.Process(pids[0]).environ()[VARIABLE].startswith(f"{inner.pid}:")
    assert psutil.Process(inner.pid).environ()[VARIABLE] == os.environ[VARIABLE]
    inner.kill()
    inner.wait()
    found = of(inner.pid)
    assert found is not None
    assert list(found.pids) == pids
    assert of(os.getpid()) is None


def test_a_pid_that_came_back_is_another_process(family: Family) -> None:
    environ: dict[str, str] = {}
    mark(environ)
    pid, start = environ[VARIABLE].split(":")
    assert int(pid) == os.getpid()
    mine = family.program("raylet", SLEEP, **environ)
    assert of(os.getpid()) is None
    earlier = family.program("raylet", SLEEP, **{VARIABLE: f"{pid}:{float(start) - 5:.2f}"})
    found = of(os.getpid())
    assert found is not None
    assert found.pids == (earlier.pid,)
    assert mine.poll() is None


@pytest.mark.parametrize("strange", ["", "x", "1:2:3", ":", "1:x"])
def test_a_mark_that_says_nothing_is_not_told_of(family: Family, strange: str) -> None:
    one = family.program("raylet", SLEEP, **{VARIABLE: strange})
    assert all(one.pid not in found.pids for found in orphaned_processes())


def test_agents_end_by_themselves() -> None:
    left = OrphanedProcesses(7, (8, 9), ("ray::DashboardAgent", "ray::RuntimeEnvAgent"), 118.4, 20.0)
    assert left.sentence == (
        "a raysim driver that was killed (pid 7) left 2 Ray processes with 118 MiB of memory: ray::DashboardAgent, "
        "ray::RuntimeEnvAgent; these end within a minute, or with: kill -9 8 9"
    )


@pytest.mark.parametrize(
    ("line", "is_ray"),
    [
        ("/venv/lib/python3.11/site-packages/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/s", True),
        ("/venv/lib/python3.11/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray/s/logs", True),
        ("python -u /venv/lib/python3.11/site-packages/ray/_private/log_monitor.py --session-dir=/tmp/ray/s", True),
        ("python -u /venv/lib/python3.11/site-packages/ray/autoscaler/_private/monitor.py", True),
        ("python /venv/lib/python3.11/site-packages/ray/dashboard/dashboard.py --host=127.0.0.1", True),
        ("python /venv/lib/python3.11/site-packages/ray/_private/workers/default_worker.py", True),
        ("python -m ray.util.client.server --address=192.0.2.2:51449", True),
        ("ray::ClientActor.train", True),
        ("ray::IDLE", True),
        ("ray-dashboard-NodeHead-0 (python -B -c ...)", True),
        ("python raysim launch scenarios/quickstart.yaml", False),
        ("/venv/bin/raysim ui", False),
        ("python -m pytest tests/ray", False),
        ("vim raylet.md", False),
    ],
)
def test_command_lines_of_ray(line: str, is_ray: bool) -> None:
    assert bool(RAY.search(line)) is is_ray


def test_is_quick(family: Family) -> None:
    for _ in range(20):
        family.program("sleeper", SLEEP)
    orphaned_processes()
    began = time.process_time()
    orphaned_processes()
    per_process = (time.process_time() - began) / len(psutil.pids())
    assert per_process < 0.001  # so 300 processes take less than 0.3 s; measured: 0.1 ms each
