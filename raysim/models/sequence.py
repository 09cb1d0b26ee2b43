"""Networks for a fixed number of tokens: a gated recurrent unit and transformers, all projected to the width D.

Shapes: B samples, L tokens each, E width of an embedding, H heads of attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.common.inputs import InputSpec
from raysim.core.adapters import lora
from raysim.core.seeds import global_seed
from raysim.models.split import SplitNet, projection


class LastState(nn.Module):
    """The state of a gated recurrent unit after the last token: [B, L, E] to [B, hidden]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, x_BLE: Tensor) -> Tensor:
        return self.gru(x_BLE)[1][-1]


class Block(nn.Module):
    """A transformer block: attention and an MLP four times as wide, each with pre-norm and residual, without dropout.

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


class Patches(nn.Module):
    """The embeddings of an image's square patches: [B, C, H, W] to [B, L, E]."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.linear = nn.Linear(channels * patch**2, width)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.linear(F.unfold(x_BCHW, self.patch, stride=self.patch).transpose(1, 2))


class Encoder(nn.Module):
    """A transformer encoder with learned position embeddings; returns the mean [B, E] of all L outputs."""

    def __init__(self, embedding: nn.Module, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.position_LE = nn.Parameter(torch.empty(length, width).normal_(std=0.02))
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
    embedding = nn.Embedding(input_spec.vocabulary, width)
    encoder = Encoder(embedding, input_spec.size, width, depth, heads)
    return SplitNet(nn.Sequential(encoder, projection(width, feature_dim)), nn.Linear(feature_dim, num_classes))


def lora_transformer(
    num_classes: int,
    input_spec: InputSpec,
    feature_dim: int,
    *,
    rank: int,
    patch: int,
    width: int,
    depth: int,
    heads: int,
) -> SplitNet:
    """Build a frozen transformer for tokens or for patches of images, with an adapter at each of its linear layers.

    The frozen weights are random, but equal in all runs and for all ranks. Clients train the adapters and the header.
    """
    with global_seed(0, "frozen transformer"):
        embedding: nn.Module
        if input_spec.kind == "tokens":
            embedding, length = nn.Embedding(input_spec.vocabulary, width), input_spec.size
        else:
            channels, height, side = input_spec.shape
            embedding, length = Patches(channels, patch, width), height * side // patch**2
        encoder = Encoder(embedding, length, width, depth, heads)
        frozen = nn.Sequential(encoder, projection(width, feature_dim))
    # Torch's initial weights are small, so means over positions would differ little between samples, and adapters could
    # not learn.
    with torch.no_grad():
        encoder.position_LE.mul_(50)
        for layer in encoder.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(2.5)
    return SplitNet(lora(frozen, rank), nn.Linear(feature_dim, num_classes))
