"""The network of pfl-research's CIFAR-10 benchmark, for the scenario of `on_a_gpu.py`."""

from __future__ import annotations

from torch import nn

from raysim.common.inputs import InputSpec
from raysim.models.split import SplitNet


def simple_cnn(num_classes: int, input_spec: InputSpec, feature_dim: int, dropout: bool = True) -> SplitNet:
    """Build two 3x3 convolutions (32, 64), max-pooling, and a layer of `feature_dim`, with dropout and Xavier init."""
    channels, height, width = input_spec.shape
    pooled = (height - 4) // 2 * ((width - 4) // 2)
    extractor = nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25) if dropout else nn.Identity(),
        nn.Flatten(),
        nn.Linear(64 * pooled, feature_dim),
        nn.ReLU(),
        nn.Dropout(0.5) if dropout else nn.Identity(),
    )
    net = SplitNet(extractor, nn.Linear(feature_dim, num_classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return net


def simple_cnn_without_dropout(num_classes: int, input_spec: InputSpec, feature_dim: int) -> SplitNet:
    """Build the same network without dropout, since one call cannot train clients with dropout together."""
    return simple_cnn(num_classes, input_spec, feature_dim, dropout=False)
