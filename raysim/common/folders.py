"""The cache folder, whose files raysim can create again, and the folder for Ray's temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from raysim.common.text import expanded

LONGEST = 19
"""Maximum length, in bytes, of a folder's name for Ray's sockets. The names of sockets add 84 bytes with the largest
process id, and macOS allows 103 bytes in total (Linux 107)."""


def cache_root() -> Path:
    """Return `$RAYSIM_CACHE`, or else `raysim` in the user's cache folder. The folder may not exist yet."""
    if own := os.environ.get("RAYSIM_CACHE"):
        return expanded(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return expanded(shared) / "raysim"
    return expanded("~/.cache/raysim")


def folder_of_ray() -> str:
    """Return the folder for Ray's temporary files: RAY_TMPDIR, else the system's, or /tmp if that is too long."""
    system = tempfile.gettempdir()
    return os.environ.get("RAY_TMPDIR") or (system if len(os.fsencode(system)) <= LONGEST else "/tmp")
