"""Builds the simulated device's library, once for each version of torch and of the source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
SOURCE = PLUGIN / "device.cpp"


def library() -> Path:
    """Return the path of the built library. It is built, in a minute, if it is not in the cache."""
    import torch

    key = hashlib.sha256(f"{torch.__version__} {sys.version}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raysim-tests"
    path = cache / f"simulated-{key}.so"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        build(path)
    return path


def compiler() -> str | None:
    """Return the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def build(path: Path) -> None:
    """Compile the source to a library."""
    import torch
    from torch.utils import cpp_extension

    made = path.with_name(f"{path.name}.{os.getpid()}")
    command = [str(compiler()), "-shared", "-fPIC", "-O1", "-std=c++20"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{folder}" for folder in cpp_extension.include_paths()]
    command += [str(SOURCE), "-o", str(made)]
    command += [f"-L{folder}" for folder in cpp_extension.library_paths()]
    command += ["-lc10", "-ltorch_cpu", "-ltorch"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{SOURCE} cannot be compiled:\n{done.stderr}")
    made.replace(path)  # another process may have built it too


if __name__ == "__main__":
    print(library())
