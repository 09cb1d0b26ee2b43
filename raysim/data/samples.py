"""What readers of a user's own files share: images of mixed sizes, labels that become classes, ids that become clients.

Whatever is wrong ends in a ScenarioError of one sentence that names the file.

Shapes: M samples of one data set, H x W pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.data.sources import first_line, open_image


@dataclass
class Images:
    """Images of `count` samples as they are decoded: grey if all are, else colour; of one size, or resized to one."""

    count: int
    side: int | None  # to which they are resized
    names: list[str] = field(default_factory=list)
    raw_MHWC: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.uint8))

    def add(self, encoded: bytes | None, where: str) -> None:
        """Decode the PNG or JPEG of the next sample; `where` names it."""
        if not encoded:
            raise ScenarioError(f"{where} is missing")
        try:
            image = open_image(encoded)
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
            if self.side is not None and image.size != (self.side, self.side):
                image = image.resize((self.side, self.side))
            pixel = np.asarray(image)
        except Exception as error:  # Pillow raises a dozen kinds for damaged bytes
            raise ScenarioError(f"{where} is not a readable PNG or JPEG ({first_line(error)})") from None
        pixel_HWC = pixel.reshape(*pixel.shape[:2], -1)
        if not self.names:
            self.raw_MHWC = np.empty((self.count, *pixel_HWC.shape), np.uint8)
        height, width, channels = self.raw_MHWC.shape[1:]
        if pixel_HWC.shape[:2] != (height, width):
            raise ScenarioError(
                f"{where} is {pixel_HWC.shape[1]}x{pixel_HWC.shape[0]}, but {self.names[0]} is {width}x{height}; give "
                "the side to which all are resized as data.size"
            )
        if pixel_HWC.shape[2] > channels:
            self.raw_MHWC = np.repeat(self.raw_MHWC, 3, axis=3)
        self.raw_MHWC[len(self.names)] = pixel_HWC
        self.names.append(where)


def to_features(value_M: NDArray[Any], names: Sequence[str], where: str) -> NDArray[np.float32]:
    """Numbers as features [M, ...]. Raises ScenarioError where one is not finite. names: of the columns, if any."""
    with np.errstate(over="ignore"):
        feature_M = np.ascontiguousarray(value_M, dtype=np.float32)
    if not np.isfinite(feature_M).all():
        row, *rest = (int(one) for one in np.argwhere(~np.isfinite(feature_M))[0])
        of = f", column {names[rest[0]]}" if names else ""
        raise ScenarioError(f"{where}: row {row + 1}{of} holds {feature_M[row, *rest]}; features are finite numbers")
    return feature_M


def to_tokens(value_ML: NDArray[Any], where: str) -> tuple[NDArray[Any], int]:
    """Whole numbers as tokens, as narrow as they fit, and the size of their vocabulary."""
    least, most = (int(value_ML.min()), int(value_ML.max())) if value_ML.size else (0, 0)
    if least < 0 or most >= 2**31 - 1:
        raise ScenarioError(f"{where}: holds token {least if least < 0 else most}; tokens count from 0 to 2147483646")
    return value_ML.astype(np.uint8 if most < 256 else np.int32), most + 1


def to_classes(
    parts: Sequence[NDArray[Any]], where: Path, names: tuple[str, ...] = ()
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as class ids, and the names of the classes. Text becomes classes in sorted order.

    parts: whole numbers or text. names: of the classes, where the files say them.
    """
    if any(part.dtype.kind not in "iu" for part in parts):
        name_C, label_M = np.unique(np.concatenate([part.astype(str) for part in parts]), return_inverse=True)
        names = tuple(name_C.tolist())
    else:
        label_M = np.concatenate(parts)
        least, most = (int(label_M.min()), int(label_M.max())) if len(label_M) else (0, 0)
        limit = len(names) or len(label_M)
        if least < 0 or most >= limit:
            has = f"it names {len(names)} classes" if names else f"there are {limit} samples"
            raise ScenarioError(
                f"{where}: labels run from {least} to {most}, but {has}; whole numbers count classes from 0"
            )
        names = names or tuple(map(str, range(most + 1)))
    if len(label_M) and (label_M == label_M[0]).all():
        raise ScenarioError(
            f"{where}: all {len(label_M)} labels are {names[int(label_M[0])]}; allowed: two classes or more"
        )
    return label_M.astype(np.int64).reshape(-1), names


def to_owners(id_M: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each sample's place among the ids, and the ids as text, ascending."""
    id_K, owner_M = np.unique(id_M.astype(str), return_inverse=True)
    return owner_M.astype(np.int64).reshape(-1), tuple(id_K.tolist())
