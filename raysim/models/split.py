"""The common structure of all client networks: a feature extractor, then one linear header.

Heterogeneous clients have nothing in common inside the extractor. They can exchange representations (all of the same
width D), the header that reads them, and logits.

Shapes: B samples, C classes, D representation width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from raysim.common.inputs import InputSpec


class SplitNet(nn.Module):
    """A network that is split before its last linear layer: logits = header(extractor(x)).

    >>> import torch
    >>> from torch import nn
    >>> from raysim import SplitNet
    >>> net = SplitNet(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))
    >>> x_B = torch.zeros(5, 1, 8, 8)
    >>> net.features(x_B).shape, net(x_B).shape
    (torch.Size([5, 32]), torch.Size([5, 10]))
    """

    def __init__(self, extractor: nn.Module, header: nn.Linear, cuts: Sequence[int] = ()) -> None:
        """Join an extractor, which maps samples [B, ...] to [B, D], and a header, which maps [B, D] to [B, C].

        cuts: positions in a sequential extractor at which it can be divided into stages, ascending.
        """
        super().__init__()
        self.extractor = extractor
        self.header = header
        self.cuts = tuple(cuts)

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The stages of the extractor, in order. Without split points, the whole extractor is one stage."""
        if not self.cuts:
            return (self.extractor,)
        assert isinstance(self.extractor, nn.Sequential)
        ends = [0, *self.cuts, len(self.extractor)]
        return tuple(self.extractor[begin:end] for begin, end in pairwise(ends))

    def features(self, x_B: Tensor) -> Tensor:
        """Return the representation [B, D], which a ReLU keeps from being negative in raysim's networks."""
        return self.extractor(x_B)

    def forward(self, x_B: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        return self.header(self.extractor(x_B))


def example(input_spec: InputSpec, count: int) -> Tensor:
    """Return random samples [count, ...] in the form that a network reads, to test it."""
    if input_spec.kind == "tokens":
        return torch.randint(input_spec.vocabulary, (count, *input_spec.shape))
    x_B = torch.rand(count, *input_spec.shape)
    return x_B.contiguous(memory_format=torch.channels_last) if input_spec.kind == "image" else x_B


def projection(backbone_dim: int, feature_dim: int) -> nn.Sequential:
    """Build Linear -> ReLU, from [B, backbone_dim] to [B, feature_dim], the common width."""
    return nn.Sequential(nn.Linear(backbone_dim, feature_dim), nn.ReLU())
