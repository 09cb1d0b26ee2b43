"""Where raysim keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """RAYSIM_CACHE, or the folder `raysim` in the user's cache folder. Need not exist."""
    if own := os.environ.get("RAYSIM_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "raysim"
    return Path("~/.cache/raysim").expanduser()
