"""The shape every client network has: a feature extractor of any kind, then one linear header.

Heterogeneous clients share nothing inside the extractor; what they can exchange is the representation (all of
the same width D), the header that reads it, and the logits.

Shapes: B samples, D representation width, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn


class SplitNet(nn.Module):
    """A network cut before its last linear layer: logits = header(extractor(x))."""

    def __init__(self, extractor: nn.Module, header: nn.Linear) -> None:
        """`extractor` maps samples [B, ...] to [B, D]; `header` maps [B, D] to [B, K]."""
        super().__init__()
        self.extractor = extractor
        self.header = header

    def features(self, x_B: Tensor) -> Tensor:
        """The representation [B, D], after the extractor's last ReLU, so never negative."""
        return self.extractor(x_B)

    def forward(self, x_B: Tensor) -> Tensor:
        """Logits [B, K]."""
        return self.header(self.extractor(x_B))


def projection(backbone_dim: int, feature_dim: int) -> nn.Sequential:
    """Linear -> ReLU, [B, backbone_dim] to [B, feature_dim]: brings a backbone to the common width."""
    return nn.Sequential(nn.Linear(backbone_dim, feature_dim), nn.ReLU())
