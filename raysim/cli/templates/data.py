"""What the data is, and where it comes from. Shapes: M samples."""

from __future__ import annotations

from typing import Any

import numpy as np


def load() -> dict[str, Any]:
    """Return x as uint8 images [M, H, W] or [M, H, W, C], floats [M, ...] or tokens [M, L]; y as class ids or text."""
    rng = np.random.default_rng(0)  # every call must return the same arrays, in every process, so the seed is fixed
    x = rng.normal(size=(1000, 20)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    user = rng.integers(0, 20, 1000)  # the user of each sample, for `partition: {name: natural, by: user}`
    return {"x": x, "y": y, "user": user}
