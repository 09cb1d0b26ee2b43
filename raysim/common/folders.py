"""Where raysim keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.common.text import expanded


def cache_root() -> Path:
    """RAYSIM_CACHE, or the folder `raysim` in the user's cache folder. Need not exist."""
    if own := os.environ.get("RAYSIM_CACHE"):
        return expanded(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return expanded(shared) / "raysim"
    return Path("~/.cache/raysim").expanduser()
