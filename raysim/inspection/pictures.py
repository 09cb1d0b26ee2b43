"""Figures, images and colours shared by the pictures of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysim.common import names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = NDArray[np.float32]
"""[H, W, C] in [0, 1]."""


def make_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, NDArray[Any]]:
    """Make a figure and its axes, [rows, columns], without the global state of matplotlib's pyplot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def pixels(raw: NDArray[np.uint8]) -> Image:
    """Convert stored pixels to numbers in [0, 1]."""
    return (raw / np.float32(255)).astype(np.float32)


def show_image(axes: Axes, image_HWC: Image, title: str = "") -> None:
    """Show an image with values in [0, 1], in grey if it has one channel, without axes."""
    grey = image_HWC.shape[2] == 1
    axes.imshow(image_HWC[:, :, 0] if grey else image_HWC, cmap="gray" if grey else None, vmin=0, vmax=1)
    axes.set_title(names.picture(title), fontsize=7)
    axes.set_axis_off()


def class_colours(classes: NDArray[np.int64]) -> dict[int, Any]:
    """Class id -> colour."""
    from matplotlib import colormaps

    few = len(classes) <= 10
    scale = colormaps["tab10" if few else "turbo"]
    at = range(len(classes)) if few else np.linspace(0.02, 0.98, len(classes))
    return {int(c): scale(place) for c, place in zip(classes, at, strict=True)}
