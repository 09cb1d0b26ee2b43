"""The findings of `raysim doctor` about this machine: versions, GPUs, limits, and addresses of MLflow and Ray."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.common.errors import RaysimError
from raysim.common.installed import installed
from raysim.results.store import check_uri

Verdict = Literal["ok", "note", "problem"]
"""`note`: runs work, but a part is slow. `problem`: a launch cannot work."""

FEW_FILES = 1024
"""With at most this many open files per process, Ray fails for some hundred actors: each needs several sockets."""
SMALL_SHM = 1 << 30
"""If /dev/shm has fewer bytes, Ray stores shared objects, such as the data set, in files below /tmp."""


@dataclass(frozen=True)
class Finding:
    """A fact about this machine, and its consequence for a run."""

    what: str
    verdict: Verdict
    text: str


def findings() -> list[Finding]:
    """Examine this machine, without changing it."""
    return [versions(), gpus(), *shared_memory(), *open_files(), mlflow(), ray()]


def versions() -> Finding:
    """The versions of Python and of the main packages."""
    packages = ", ".join(f"{name} {installed(name)}" for name in ("raysim", "ray", "torch", "torchvision", "mlflow"))
    return Finding("versions", "ok", f"Python {sys.version.split()[0]}, {packages}")


def gpus() -> Finding:
    """The GPUs that torch can use."""
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("GPUs", "ok", f"{', '.join(names)}; torch is built with {built}")
    if shutil.which("nvidia-smi"):
        return Finding("GPUs", "note", f"torch, which is built with {built}, cannot use the GPUs of nvidia-smi")
    return Finding("GPUs", "ok", f"none; clients run on CPUs, and torch is built with {built}")


def shared_memory(folder: Path = Path("/dev/shm")) -> list[Finding]:
    """The shared memory in which Ray stores the data set once for all actors of a machine. macOS has none."""
    if not folder.is_dir():
        return []
    size = shutil.disk_usage(folder).total
    shown = f"{size / 2**30:.1f} GiB"
    if size >= SMALL_SHM:
        return [Finding("shared memory", "ok", f"{folder} has {shown}")]
    text = f"{folder} has only {shown}, so Ray keeps shared data in files, which is slower; in Docker, start the "
    return [Finding("shared memory", "note", f"{text}container with --shm-size=4g")]


def open_files() -> list[Finding]:
    """How many files a process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit > FEW_FILES:
        return [Finding("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"{limit} per process")]
    text = f"{limit} per process, too few for hundreds of actors; before a run with so many, enter `ulimit -n 65536`"
    return [Finding("open files", "note", text)]


def mlflow() -> Finding:
    """The address of MLflow's store, and whether a server there answers; otherwise `launch` refuses it."""
    try:
        return Finding("MLflow", "ok", check_uri())
    except RaysimError as error:
        return Finding("MLflow", "problem", str(error))


def ray() -> Finding:
    """Whether runs start their own Ray, or connect to a cluster that answers."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Finding("Ray", "ok", "each run starts its own Ray, which only this user can reach")
    from raysim.engine.ray.session import check_answer

    try:
        check_answer(address)
    except RaysimError as error:
        return Finding("Ray", "problem", str(error))
    return Finding("Ray", "note", f"RAY_ADDRESS is set, so runs join the Ray cluster at {address}")
