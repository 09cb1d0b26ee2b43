"""Conversions for readers of a user's own files: mixed image sizes, labels to class ids, and ids to clients.

Shapes: M samples of one data set, H x W pixels, C channels, L tokens, K distinct ids.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysim.common.errors import ScenarioError
from raysim.data.sources import naming

_LEAST_PER_CLASS = 5
"""If classes have fewer samples than this on average, labels that are whole numbers are taken for quantities."""


@dataclass
class Images:
    """An array of `count` decoded images: grey if all are grey, else colour; all of one size or resized to one."""

    count: int
    side: int | None  # side in pixels after resizing; None: images are not resized
    names: list[str] = field(default_factory=list)
    raw_MHWC: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.uint8))

    def add(self, encoded: bytes | None, where: str) -> None:
        """Decode the next image. where: the image's name in an error."""
        with naming(where):
            image: Image.Image = Image.open(io.BytesIO(encoded or b""))
            if image.mode[0] in "IF":  # Pillow would clip the values of these modes
                raise ScenarioError(f"{where} has image mode {image.mode}; save it with 8 bits per channel")
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
            if self.side is not None and image.size != (self.side, self.side):
                image = image.resize((self.side, self.side))
            pixel_HWC = np.asarray(image).reshape(image.height, image.width, -1)
        first = self.raw_MHWC.shape
        if self.names and pixel_HWC.shape[:2] != first[1:3]:
            raise ScenarioError(
                f"{where} is {image.width}x{image.height}, but {self.names[0]} is {first[2]}x{first[1]}; set data.size "
                "to resize all images to one size"
            )
        if not self.names:
            self.raw_MHWC = np.empty((self.count, *pixel_HWC.shape), np.uint8)
        if pixel_HWC.shape[2] > self.raw_MHWC.shape[3]:
            self.raw_MHWC = np.repeat(self.raw_MHWC, 3, axis=3)
        self.raw_MHWC[len(self.names)] = pixel_HWC
        self.names.append(where)


def to_features(value_M: NDArray[Any], names: Sequence[str], where: str) -> NDArray[np.float32]:
    """Convert numbers to features [M, ...]. Raises ScenarioError unless all are finite. names: of columns, if any."""
    with np.errstate(over="ignore"):
        feature_M = np.ascontiguousarray(value_M, dtype=np.float32)
    if not np.isfinite(feature_M).all():
        row, *rest = (int(one) for one in np.argwhere(~np.isfinite(feature_M))[0])
        of = f", column {names[rest[0]]}" if names else ""
        raise ScenarioError(f"{where}: row {row + 1}{of} holds {feature_M[row, *rest]}; features must be finite")
    return feature_M


def to_tokens(value_ML: NDArray[Any], where: str) -> tuple[NDArray[Any], int]:
    """Convert whole numbers to tokens of the smallest possible type; return also the size of their vocabulary."""
    least, most = (int(value_ML.min()), int(value_ML.max())) if value_ML.size else (0, 0)
    if least < 0 or most >= 2**31 - 1:
        raise ScenarioError(f"{where}: token {least if least < 0 else most} given; allowed: 0 to 2147483646")
    return value_ML.astype(np.uint8 if most < 256 else np.int32), most + 1


def to_whole(label_M: NDArray[Any], what: str, key: str = "") -> NDArray[np.int64]:
    """Convert labels that are booleans or floats such as 1.0 to whole numbers. what: how an error calls the labels.

    Raises ScenarioError, about `key`, for other floats.
    """
    with np.errstate(invalid="ignore"):
        odd_E = np.flatnonzero(label_M.astype(np.float64) % 1 != 0)  # also finds NaN and infinity
    if odd_E.size:
        raise ScenarioError(
            f"{what} has the value {label_M[odd_E[0]]:g}, which is no class (raysim does classification only); give "
            "labels that are whole numbers or text",
            key=key,
        )
    return label_M.astype(np.int64)


def to_classes(
    parts: Sequence[NDArray[Any]], where: Path, names: tuple[str, ...] = ()
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Convert labels to class ids [M], and return the names of the classes.

    Whole numbers that begin with 0 are class ids. Text becomes classes in sorted order; so do other whole numbers.
    parts: whole numbers or text. names: the names of the classes, if the files have them. Raises ScenarioError.
    """
    if any(part.dtype.kind not in "iu" for part in parts):
        name_C, label_M = np.unique(np.concatenate([part.astype(str) for part in parts]), return_inverse=True)
        names = tuple(name_C.tolist())
    else:
        label_M = np.concatenate(parts)
        least, most = int(label_M.min()), int(label_M.max())
        if names and not 0 <= least <= most < len(names):
            raise ScenarioError(
                f"{where}: labels range from {least} to {most}, but the file names {len(names)} classes; number the "
                "classes from 0 without gaps"
            )
        if not names and least == 0 and most < len(label_M):
            names = tuple(map(str, range(most + 1)))
        elif not names:
            label_M, names = _named_by_number(label_M, where)
    if len(label_M) and (label_M == label_M[0]).all():
        raise ScenarioError(
            f"{where}: all {len(label_M)} labels are {names[int(label_M[0])]}; give data of at least two classes"
        )
    return label_M.astype(np.int64).reshape(-1), names


def _named_by_number(label_M: NDArray[Any], where: Path) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Make each different number a class named by it. Raises ScenarioError if there are too many, as for prices."""
    number_C, class_M = np.unique(label_M, return_inverse=True)
    if len(number_C) * _LEAST_PER_CLASS > len(label_M):
        raise ScenarioError(
            f"{where}: the labels are {len(number_C)} different numbers from {number_C[0]} to {number_C[-1]} for "
            f"{len(label_M)} samples, but raysim does classification only; give labels that are classes, of at least "
            f"{_LEAST_PER_CLASS} samples on average"
        )
    return class_M, tuple(map(str, number_C.tolist()))


def to_owners(id_M: NDArray[Any] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each sample's position in the ids, and the ids as text, ascending. None: samples have no ids."""
    if id_M is None:
        return np.zeros(0, np.int64), ()
    id_K, owner_M = np.unique(id_M.astype(str), return_inverse=True)
    return owner_M.astype(np.int64).reshape(-1), tuple(id_K.tolist())
