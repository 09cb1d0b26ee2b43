"""Figures, images and colours shared by the pictures of this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysim.common import names
from raysim.common.errors import ScenarioError
from raysim.common.files import reason, replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = NDArray[np.float32]
"""[H, W, C] in [0, 1]."""

SUFFIXES = (".png", ".svg", ".pdf")


def picture_file(path: Path | str) -> Path:
    """Check the file name of a picture, before minutes of work. Raises `ScenarioError` for a wrong suffix or folder."""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise ScenarioError(f"-o: {path} given; give a file that ends in {', '.join(SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise ScenarioError(f"-o: {path} given, but there is no folder {file.parent}")
    return file


def make_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, NDArray[Any]]:
    """Make a figure and its axes, [rows, columns], without the global state of matplotlib's pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
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


def save_figure(figure: Figure, file: Path) -> Path:
    """Write a figure atomically. Raises `ScenarioError` if the file cannot be written."""
    date = {} if file.suffix == ".png" else {"CreationDate" if file.suffix == ".pdf" else "Date": None}
    try:
        replace(file, lambda out: figure.savefig(out, format=file.suffix[1:], facecolor="white", metadata=date))
    except OSError as error:
        raise ScenarioError(f"-o: {file} cannot be written ({reason(error)})") from None
    return file


def class_colours(classes: NDArray[np.int64]) -> dict[int, Any]:
    """Class id -> colour."""
    from matplotlib import colormaps

    few = len(classes) <= 10
    scale = colormaps["tab10" if few else "turbo"]
    at = range(len(classes)) if few else np.linspace(0.02, 0.98, len(classes))
    return {int(c): scale(place) for c, place in zip(classes, at, strict=True)}
