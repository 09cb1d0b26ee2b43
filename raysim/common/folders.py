"""The cache folder, for files that raysim can recreate."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.common.text import expanded


def cache_root() -> Path:
    """Return `$RAYSIM_CACHE`, or `raysim` in the user's cache folder; the folder may not exist yet."""
    if own := os.environ.get("RAYSIM_CACHE"):
        return expanded(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return expanded(shared) / "raysim"
    return expanded("~/.cache/raysim")
