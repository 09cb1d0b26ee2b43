"""The code that affects a run: the method's file, the user's own files that it imports, and raysim itself."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from raysim.common.errors import ScenarioError
from raysim.common.modules import plain_module
from raysim.common.text import one_line
from raysim.core.algorithm import AnyAlgorithm
from raysim.plugins.own_code import OwnCode
from raysim.plugins.reading import imported_by, own_modules

PARTS = ("common", "core", "data", "engine", "grouped", "models", "plugins")
"""The parts of raysim that affect results. Changes of other parts, such as the progress bar, change no number."""

RAYSIM = f"raysim/{{{','.join(PARTS)}}}"
"""The entry of `Code.files` for these parts. Another version of raysim may have other parts."""


@dataclass(frozen=True)
class Code:
    """Digests of the files that affect a run, and raysim's git commit."""

    files: Mapping[str, str]  # name -> SHA-256
    commit: str | None = None  # commit of the git checkout that contains raysim; None: no checkout, or no git
    dirty: bool | None = None  # whether raysim or its algorithms differ from that commit

    @classmethod
    def of(cls, algorithm: AnyAlgorithm, own_code: OwnCode | None = None) -> Code:
        """Return the present code of a method, and of the user's own files that the scenario names.

        Raises `ScenarioError` when a file has changed since this process imported it.
        """
        digests = dict(own_code.digests) if own_code else {}
        for name, file in _files_of(type(algorithm).__module__, own_code).items():
            place = name.removeprefix("raysim.").replace(".", "/")
            place += f"/{file.name}" if file.stem == "__init__" else file.suffix
            digests[place] = hashlib.sha256(file.read_bytes()).hexdigest()
            imported = sys.modules.get(name)
            if imported and _first.setdefault(imported, digests[place]) != digests[place]:
                raise ScenarioError(
                    f"{place} has changed since this process imported it, so the old code would run; start a new "
                    "process (in a notebook, restart the kernel)"
                )
        return cls({**digests, RAYSIM: _of_raysim()}, *checkout())

    @property
    def method(self) -> str:
        """A short digest of the method's file and the files that it imports."""
        files = sorted((name, digest) for name, digest in self.files.items() if not name.startswith("raysim/{"))
        return hashlib.sha256(repr(files).encode()).hexdigest()[:12]

    def tags(self) -> dict[str, str]:
        """Return tags for MLflow. MLflow itself defines the names of the first two."""
        known = {"mlflow.source.git.commit": self.commit, "mlflow.source.git.dirty": self.dirty}
        tags = {name: str(value).lower() for name, value in known.items() if value is not None}
        return {**tags, "raysim.code": self.method}

    def changes(self, now: Code) -> list[str]:
        """Return one description for each file that differs between this code and `now`."""
        names = dict.fromkeys([*self.files, *now.files])
        return [
            one_line(f"{name} ({self.files.get(name, 'none')[:12]} before, {now.files.get(name, 'none')[:12]} now)")
            for name in names
            if self.files.get(name) != now.files.get(name)
        ]


def _files_of(module: str, own_code: OwnCode | None) -> dict[str, Path]:
    """Return module name -> file, for a method's module and all its imports, except the user's own files."""
    if own_code is None or not own_code.module(plain_module(module)):
        return own_modules(module)
    files: dict[str, Path] = {}
    for name in own_code.digests:
        files |= imported_by(own_code.files[name].text)
    return {name: file for name, file in files.items() if not own_code.module(name)}


_first: weakref.WeakKeyDictionary[ModuleType, str] = weakref.WeakKeyDictionary()
"""Module -> SHA-256 of its file when this process first used it for a run."""


def versions() -> dict[str, str]:
    """Return the versions of raysim, Python, torch and NumPy, and this machine's `processor`."""
    import numpy
    import torch

    return {
        "raysim": _version(),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "processor": f"{processor()} {torch.backends.cpu.get_cpu_capability()}",
    }


@cache  # reading the metadata takes 4 ms, and each cell of a sweep asks for the version
def _version() -> str:
    """Return raysim's version."""
    return metadata.version("raysim")


@cache
def processor() -> str:
    """Return the vendor, family and model of the processor on Linux; elsewhere, the architecture.

    torch's libraries choose their kernels by it, and kernels differ in the last digits of their sums.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    known = [facts[key] for key in ("vendor_id", "cpu family", "model") if key in facts]
    return " ".join(known) or platform.machine()


def _package() -> Path:
    """The folder of raysim's package."""
    return Path(str(sys.modules["raysim"].__file__)).parent


@cache
def checkout() -> tuple[str | None, bool | None]:
    """Return the commit of raysim's git checkout, and whether the code differs; (None, None) if there is none."""
    folder = _package()
    # If raysim is installed inside another repository, that repository's commit is not raysim's.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return _shipped()
    commit, changed = _git(folder, "rev-parse", "HEAD"), _git(folder.parent, "status", "--porcelain", *_PACKAGES)
    return commit, None if changed is None else bool(changed)


_PACKAGES = ("--", "raysim", "algorithms")
SHIPPED = "CHECKOUT"
"""Name of a metadata file with the result of `checkout` on the submitting machine; such a job brings raysim."""


def _shipped() -> tuple[str | None, bool | None]:
    commit, _, dirty = (metadata.distribution("raysim").read_text(SHIPPED) or "").partition(" ")
    return (commit, dirty == "dirty") if commit else (None, None)


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if git fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def _of_raysim() -> str:
    sha = hashlib.sha256()
    folder = _package()
    for part in PARTS:
        for file in sorted((folder / part).rglob("*.py")):
            sha.update(
                f"{file.relative_to(folder).as_posix()}={hashlib.sha256(file.read_bytes()).hexdigest()};".encode()
            )
    return sha.hexdigest()
