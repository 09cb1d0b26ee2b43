"""What a network reads of one sample: data sets provide it, models are checked against it, builders get it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "features", "tokens"]


@dataclass(frozen=True)
class InputSpec:
    """One sample as a network reads it: an image, features of any shape, or a fixed number of tokens."""

    kind: Kind
    shape: tuple[int, ...]
    """Of an image: channels, height, width; of tokens: how many."""
    vocabulary: int = 0
    """Tokens are 0 to vocabulary - 1; 0: these are no tokens."""

    @property
    def size(self) -> int:
        """How many numbers a sample is."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """What a sample takes as stored: a byte per pixel, 4 per feature, 1 per token of a small vocabulary, else 4."""
        return self.size if self.kind == "image" or 0 < self.vocabulary <= 256 else 4 * self.size

    @property
    def shape_text(self) -> str:
        """The shape as in 3x32x32."""
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
    """Images of that size."""
    return InputSpec("image", (channels, height, width))
