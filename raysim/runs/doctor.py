"""Checks of this machine for problems that make runs slow or fail: the findings of `raysim doctor`.

Each check looks at one thing and returns one finding; `trial` then does what a launch does, in a temporary folder.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from raysim.common.errors import RaysimError
from raysim.common.memory import available_memory, resource, usable_memory
from raysim.common.requirements import fits, installed, requirements
from raysim.common.temporary import folder_of_ray
from raysim.common.text import expanded
from raysim.engine.resource_monitor import LOW_DISK, gib
from raysim.report.units import plural
from raysim.tracking.database import ask, in_words
from raysim.tracking.store import check_uri, database_path, shown, sqlite_address

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Verdict = Literal["ok", "note", "problem"]
"""`note`: a run works, but something is slow, unsupported or missing. `problem`: a launch cannot work."""

FEW_FILES = 1024
"""Open files per process up to which Ray fails with some hundred actors: it holds several sockets for each."""
SMALL_SHM = 1 << 30
"""Bytes of /dev/shm below which Ray puts shared objects, such as the data set, into files below /tmp."""
LITTLE_MEMORY = 4 << 30
"""Bytes below which Ray, MLflow and one actor with torch hardly fit: they took 2 to 3 GiB together."""


@dataclass(frozen=True)
class Finding:
    """One fact about this machine, and what follows from it for a run."""

    what: str
    verdict: Verdict
    text: str


def findings(with_trial: bool = False) -> Iterator[Finding]:
    """Check this machine, one thing after the other, without changing anything.

    with_trial: also `trial`, if there is no problem.
    """
    checks: dict[str, Callable[[], Finding]] = {
        "Python": python,
        "packages": packages,
        "torch": torch,
        "CPUs": processors,
        "GPUs": gpus,
        "memory": memory,
        "shared memory": shared_memory,
        "open files": open_files,
        "disk": disk,
        "data": data_folder,
        "MLflow": mlflow,
        "Ray": ray,
        "Ctrl-C": interrupts,
    }
    usable = True
    for what, check in checks.items():
        try:
            finding = check()
        except Exception as error:  # of a damaged package or a forbidden system call: the other checks still help
            finding = Finding(what, "problem", f"cannot be checked ({type(error).__name__}: {_line(error)})")
        usable &= finding.verdict != "problem"
        yield finding
    if with_trial and usable:
        yield trial()


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Whether raysim is tested with this version of Python."""
    text = f"{sys.version.split()[0]}, {sys.executable}"
    named = re.compile(r"Programming Language :: Python :: 3\.(\d+)")
    classifiers = metadata.metadata("raysim").get_all("Classifier") or []
    tested = sorted((3, int(found[1])) for found in map(named.fullmatch, classifiers) if found)
    if tested and not tested[0] <= version <= tested[-1]:
        first, last = (".".join(map(str, one)) for one in (tested[0], tested[-1]))
        return Finding("Python", "note", f"{text}; raysim is tested with {first} to {last}")
    return Finding("Python", "ok", text)


def packages(required: Callable[[], Sequence[Requirement]] = requirements) -> Finding:
    """Whether every dependency is installed, in a version of the supported range."""
    missing: dict[str, str] = {}
    outside: dict[str, str] = {}
    for one in required():
        version = installed(one.name)
        if not version:
            missing[one.name] = _installable(one)
        elif not fits(one, version):
            outside[f"{one.name} {version} (supported: {one.specifier})"] = _installable(one)
    if missing:
        remedy = f"run pip install {shlex.join(missing.values())}"
        return Finding("packages", "problem", f"not installed: {', '.join(missing)}; {remedy}")
    if outside:
        remedy = f"run pip install {shlex.join(outside.values())}"
        return Finding("packages", "note", f"outside the supported versions: {', '.join(outside)}; {remedy}")
    versions = ", ".join(f"{name} {installed(name)}" for name in ("ray", "torch", "mlflow"))
    return Finding("packages", "ok", f"{versions}; all dependencies are in the supported ranges")


def torch() -> Finding:
    """Whether torch can be imported, and torchvision with it: builds of different kinds do not fit together."""
    for name in ("torch", "torchvision"):
        try:
            importlib.import_module(name)
        except Exception as error:
            found = {name: installed(name) or "(not installed)" for name in ("torch", "torchvision")}
            versions = " and ".join(f"{name} {version}" for name, version in found.items())
            wrong = "torch cannot be imported" if name == "torch" else "torchvision cannot be imported with this torch"
            text = f"{versions}: {wrong} ({_line(error)}); install both with one command, from the same index"
            return Finding("torch", "problem", text)
    return Finding("torch", "ok", f"{installed('torch')}, fits torchvision {installed('torchvision')}")


def processors() -> Finding:
    """How many CPUs a run can use."""
    usable, there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0, os.cpu_count() or 1
    if usable and usable < there:
        return Finding("CPUs", "note", f"this process may use only {usable} of {there} CPUs, but Ray counts all of "
                       f"them; set resources.actors to {usable} or fewer, otherwise actors share a CPU")  # fmt: skip
    return Finding("CPUs", "ok", f"{there}; by default, a run starts at most one client actor per CPU")


def gpus() -> Finding:
    """The GPUs that torch can use, and the version of their driver."""
    import torch

    from raysim.core import accelerator

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False) if shutil.which(query[0]) else None
    rows = [] if listed is None or listed.returncode else listed.stdout.strip().splitlines()
    driver = f"driver {rows[0].rpartition(',')[2].strip()}" if rows else "an unknown driver"
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("GPUs", "ok", f"{', '.join(names)}; {driver}, torch with {built}")
    if (other := accelerator.available()) is not None:
        return Finding(
            "GPUs",
            "note",
            f"{plural(accelerator.count(), 'device')} of torch's type {other.type}; raysim is untested on such "
            "devices, and actors use them only if Ray was started with `ray start --num-gpus`",
        )
    if listed is None:
        return Finding("GPUs", "ok", "none; clients run on CPUs")
    if not rows:
        return Finding("GPUs", "note", f"nvidia-smi finds no GPU: {_line(listed.stdout + listed.stderr)}")
    names = [row.rpartition(",")[0] for row in rows]
    why = f"{driver} may be too old for this CUDA" if torch.version.cuda else "install a build of torch for CUDA"
    return Finding("GPUs", "note", f"clients run on CPUs, because torch {torch.__version__} ({built}) cannot use the "
                   f"GPUs {', '.join(names)}; {why}")  # fmt: skip


def memory() -> Finding:
    """The memory that this process may use."""
    free, all_ = available_memory(), usable_memory()
    text = f"{gib(free)} of {gib(all_)} are free"
    if free < LITTLE_MEMORY:
        need = "a run with one actor needs 2 to 3 GiB: free some memory, or set resources.actors to 1 or 2"
        return Finding("memory", "note", f"{text}; {need}")
    return Finding("memory", "ok", text)


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """The shared memory in which Ray keeps the data set once for all actors of a machine."""
    if not folder.is_dir():
        return Finding(
            "shared memory", "ok", "this system has no /dev/shm; Ray keeps shared data in files in its temporary folder"
        )
    size = shutil.disk_usage(folder).total
    if size < SMALL_SHM:
        text = f"{folder} has only {gib(size)}, so Ray keeps shared data in files, which is slower; in Docker, start "
        text += "the container with --shm-size=4g"
        return Finding("shared memory", "note", text)
    return Finding("shared memory", "ok", f"{folder} has {gib(size)}")


def open_files() -> Finding:
    """How many files a process may open."""
    if resource is None:
        return Finding("open files", "ok", "this system sets no limit per process")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit > FEW_FILES:
        return Finding("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"{limit} per process")
    return Finding(
        "open files",
        "note",
        f"{limit} per process, too few for hundreds of actors; before a run with so many, enter `ulimit -n 65536`",
    )


def disk() -> Finding:
    """The free space where runs are written and where Ray has its temporary files."""
    places = {
        "the current folder": Path(),
        "Ray's temporary folder": Path(folder_of_ray()),
    }
    for name, place in places.items():
        if not place.is_dir() or not os.access(place, os.W_OK):
            remedy = "set RAY_TMPDIR" if "Ray" in name else "change"
            text = f"{name} ({place.absolute()}) cannot be written; {remedy} to a writable folder"
            return Finding("disk", "problem", text)
    free = {name: shutil.disk_usage(place).free for name, place in places.items()}
    text = ", ".join(f"{gib(size)} free in {name}" for name, size in free.items())
    low = min(free.values()) < LOW_DISK
    return Finding("disk", "note" if low else "ok", text + ("; free some space, or runs may fail" if low else ""))


def data_folder() -> Finding:
    """The folder in which data sets are looked for."""
    given = os.environ.get("RAYSIM_DATA")
    if not given:
        return Finding("data", "ok", "RAYSIM_DATA is not set; data sets are read from `data.root` or the cache folder")
    if not expanded(given).is_dir():
        return Finding(
            "data", "note", f"RAYSIM_DATA is {given}, but this folder does not exist; set RAYSIM_DATA to another folder"
        )
    return Finding("data", "ok", f"RAYSIM_DATA is {given}")


def mlflow() -> Finding:
    """Whether MLflow's store can be used; `launch` refuses one that does not answer."""
    try:
        uri = check_uri()
        database = database_path(uri)
        if database is not None:
            known = "exists" if database.exists() else "the first run will create"
            return Finding("MLflow", "ok", f"{shown(uri)}, which {known}")
        ask(uri)
    except RaysimError as error:
        return Finding("MLflow", "problem", str(error))
    except Exception as error:  # of MLflow's requests
        text = f"{shown(uri)} refuses requests ({in_words(error)}); you can start runs, but they will warn that data "
        text += "is missing in MLflow"
        return Finding("MLflow", "note", text)
    return Finding("MLflow", "ok", f"{shown(uri)} answers")


def ray() -> Finding:
    """Whether runs start a Ray of their own, or join a cluster that answers."""
    if address := os.environ.get("RAY_ADDRESS"):
        from raysim.engine.ray.session import check_answer

        try:
            check_answer(address)
        except RaysimError as error:
            return Finding("Ray", "problem", str(error))
        return Finding("Ray", "note", f"RAY_ADDRESS is set, so runs join the Ray cluster at {address}; this "
                       "command checks only this machine")  # fmt: skip
    return Finding("Ray", "ok", "each run starts its own Ray, which only this user can reach")


def interrupts() -> Finding:
    """Whether Ctrl-C reaches a run."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        return Finding(
            "Ctrl-C",
            "note",
            "this process ignores Ctrl-C (SIGINT), as background processes do; send SIGTERM to end a run",
        )
    return Finding("Ctrl-C", "ok", "ends a run after the current round; `raysim resume` continues it")


def trial() -> Finding:
    """Run one round of the quickstart on Ray with one actor, in a temporary folder that is removed afterwards."""
    from raysim.runs.run import run

    began = perf_counter()
    with tempfile.TemporaryDirectory(prefix="raysim-doctor-") as folder:
        sets = [
            "rounds=1",
            "backend=ray",
            "resources.actors=1",
            f"output={folder}",
            f"tracking.uri={sqlite_address(Path(folder, 'mlflow.db'))}",
        ]
        try:
            run("quickstart", sets=sets, quiet=True)
        except RaysimError as error:
            return Finding("a run", "problem", str(error))
        except Exception as error:  # of a damaged package, whose error raysim cannot know
            return Finding("a run", "problem", f"{type(error).__name__}: {_line(error)}")
    return Finding(
        "a run",
        "ok",
        f"one round of quickstart worked; it took {perf_counter() - began:.0f} s, including the start of Ray",
    )


def _installable(one: Requirement) -> str:
    """A requirement with its extras and versions, for pip."""
    extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
    return f"{one.name}{extras}{one.specifier}"


def _line(error: object) -> str:
    """The first line of an error or of a program's output."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
