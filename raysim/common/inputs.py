"""Kind and shape of a network's input, which data sets provide and model builders and checks use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "features", "tokens"]


@dataclass(frozen=True)
class InputSpec:
    """Form of one sample as networks read it: an image, features of any shape, or a fixed number of tokens.

    >>> from raysim import InputSpec
    >>> spec = InputSpec("image", (1, 8, 8))
    >>> spec.size, spec.shape_text
    (64, '1x8x8')
    """

    kind: Kind
    """`image`, `features` or `tokens`."""
    shape: tuple[int, ...]
    """Shape of a sample, without the batch. Images: (channels, height, width); tokens: (number of tokens,)."""
    vocabulary: int = 0
    """Number of distinct tokens, 0 to vocabulary - 1; 0 for images and features."""

    @property
    def size(self) -> int:
        """Number of values in a sample."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of a stored sample: 1 per pixel, 4 per feature, and 1 or, from 257 distinct tokens on, 4 per token."""
        return self.size if self.kind == "image" or 0 < self.vocabulary <= 256 else 4 * self.size

    @property
    def shape_text(self) -> str:
        """The shape as text, such as "3x32x32"."""
        return "x".join(map(str, self.shape))

    def __str__(self) -> str:
        match self.kind:
            case "image":
                return f"{self.shape_text} images"
            case "features":
                return f"{self.shape_text} features"
            case "tokens":
                return f"{self.shape_text} tokens of a vocabulary of {self.vocabulary}"


def image(channels: int, height: int, width: int) -> InputSpec:
    """Return the form of images of this size."""
    return InputSpec("image", (channels, height, width))
