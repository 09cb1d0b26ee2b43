"""The shape every client network has: a feature extractor of any kind, then one linear header.

Heterogeneous clients share nothing inside the extractor; what they can exchange is the representation (all of
the same width D), the header that reads it, and the logits.

Shapes: B samples, D representation width, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from raysim.common.inputs import InputSpec


class SplitNet(nn.Module):
    """A network cut before its last linear layer: logits = header(extractor(x))."""

    def __init__(self, extractor: nn.Module, header: nn.Linear, cuts: Sequence[int] = ()) -> None:
        """`extractor` maps samples [B, ...] to [B, D]; `header` maps [B, D] to [B, K].

        cuts: where a sequential extractor may be divided into stages, as places in it, ascending.
        """
        super().__init__()
        self.extractor = extractor
        self.header = header
        self.cuts = tuple(cuts)

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The extractor's parts, one applied after the other; without cuts it is one."""
        if not self.cuts:
            return (self.extractor,)
        assert isinstance(self.extractor, nn.Sequential)
        ends = [0, *self.cuts, len(self.extractor)]
        return tuple(self.extractor[begin:end] for begin, end in pairwise(ends))

    def features(self, x_B: Tensor) -> Tensor:
        """The representation [B, D], after the extractor's last ReLU, so never negative."""
        return self.extractor(x_B)

    def forward(self, x_B: Tensor) -> Tensor:
        """Logits [B, K]."""
        return self.header(self.extractor(x_B))


def example(input_spec: InputSpec, count: int) -> Tensor:
    """Random samples [count, ...] as a network reads them, to try it with."""
    if input_spec.kind == "tokens":
        return torch.randint(input_spec.vocabulary, (count, *input_spec.shape))
    x_B = torch.rand(count, *input_spec.shape)
    return x_B.contiguous(memory_format=torch.channels_last) if input_spec.kind == "image" else x_B


def projection(backbone_dim: int, feature_dim: int) -> nn.Sequential:
    """Linear -> ReLU, [B, backbone_dim] to [B, feature_dim]: brings a backbone to the common width."""
    return nn.Sequential(nn.Linear(backbone_dim, feature_dim), nn.ReLU())
