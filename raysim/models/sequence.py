"""Networks for a fixed number of tokens: a gated recurrent unit and a transformer, both projected to the width D.

Shapes: B samples, L tokens each, E width of an embedding, H heads of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raysim.common.inputs import InputSpec
from raysim.models.split import SplitNet, projection


class LastState(nn.Module):
    """The state of a gated recurrent unit after the last token: [B, L, E] to [B, hidden]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, x_BLE: Tensor) -> Tensor:
        return self.gru(x_BLE)[1][-1]


class Block(nn.Module):
    """A transformer block: attention and an MLP four times as wide, both with pre-norm and residual, without dropout.

    Attention is written as matrix products: torch's own has faster implementations whose operations torch's counter
    misses, and whose gradients on a GPU are not repeatable.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BLE: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x_BLE)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weight_BHLL = (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).softmax(3)
        x_BLE = x_BLE + self.out((weight_BHLL @ value).transpose(1, 2).flatten(2))
        return x_BLE + self.mlp(self.norm2(x_BLE))


class Encoder(nn.Module):
    """A transformer encoder: tokens [B, L] to the mean [B, E] over all positions, with learned position embeddings."""

    def __init__(self, input_spec: InputSpec, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(input_spec.vocabulary, width)
        self.position_LE = nn.Parameter(torch.empty(input_spec.size, width).normal_(std=0.02))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)), nn.LayerNorm(width))

    def forward(self, token_BL: Tensor) -> Tensor:
        return self.blocks(self.embedding(token_BL) + self.position_LE).mean(1)


def gru(num_classes: int, input_spec: InputSpec, feature_dim: int, *, width: int, hidden: int) -> SplitNet:
    """Build embeddings of `width` and one gated recurrent unit, whose last state is projected to D."""
    extractor = nn.Sequential(
        nn.Embedding(input_spec.vocabulary, width), LastState(width, hidden), projection(hidden, feature_dim)
    )
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))


def transformer(
    num_classes: int, input_spec: InputSpec, feature_dim: int, *, width: int, depth: int, heads: int
) -> SplitNet:
    """Build embeddings of `width` and `depth` transformer blocks; the mean over all tokens is projected to D."""
    extractor = nn.Sequential(Encoder(input_spec, width, depth, heads), projection(width, feature_dim))
    return SplitNet(extractor, nn.Linear(feature_dim, num_classes))
