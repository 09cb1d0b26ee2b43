"""Networks that the tests of several methods share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Constant(nn.Module):
    """A model whose two logits are its only parameters."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits_1C = nn.Parameter(torch.tensor([logits]))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits_1C.expand(len(x), -1)


class Chain(nn.Module):
    """Logits (a * b * x, 0): a is the extractor's only parameter, b the header's; both are 1 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor = nn.Linear(1, 1, bias=False)
        self.header = nn.Linear(1, 1, bias=False)
        for layer in (self.extractor, self.header):
            nn.init.ones_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(self.header(self.extractor(x)), (0, 1))


class Line(nn.Module):
    """Samples x [B, 1], logits scale * x * w [B, 2]; w starts at 0."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale, self.w = scale, nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x * self.w


class Seen(nn.Module):
    """A network whose representation is the image itself, and whose header gives equal logits."""

    def __init__(self, num_classes: int = 3, width: int = 2) -> None:
        super().__init__()
        self.header = nn.Linear(width, num_classes)
        nn.init.zeros_(self.header.weight)
        nn.init.zeros_(self.header.bias)

    def features(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.header(self.features(x))
