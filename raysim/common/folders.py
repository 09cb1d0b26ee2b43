"""The cache folder, for files that raysim can recreate, and the folder for Ray's temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from raysim.common.text import expanded

LONGEST = 19
"""Bytes of the name of a folder in which Ray can create sockets: their names have 84 bytes below it, with the largest
process id, and macOS allows 103 in all (Linux 107)."""


def cache_root() -> Path:
    """Return `$RAYSIM_CACHE`, or `raysim` in the user's cache folder; the folder may not exist yet."""
    if own := os.environ.get("RAYSIM_CACHE"):
        return expanded(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return expanded(shared) / "raysim"
    return expanded("~/.cache/raysim")


def folder_of_ray() -> str:
    """Return the folder for Ray's temporary files: RAY_TMPDIR, else the system's, or /tmp if that name is too long."""
    system = tempfile.gettempdir()
    return os.environ.get("RAY_TMPDIR") or (system if len(os.fsencode(system)) <= LONGEST else "/tmp")
