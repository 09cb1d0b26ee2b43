"""NewModel: what it is, in one sentence.

Shapes: B samples, C channels, H x W pixels, D representation width.
"""

from __future__ import annotations

from torch import nn

from raysim import InputSpec, SplitNet


class NewModel(SplitNet):
    """One hidden layer of 64 units. A function with the same arguments that returns a `SplitNet` also works."""

    def __init__(self, num_classes: int, input_spec: InputSpec, feature_dim: int) -> None:
        """input_spec: kind and shape of a sample, (C, H, W) for images. feature_dim: D, the same for all clients."""
        extractor = nn.Sequential(  # [B, C, H, W] to [B, D], not negative
            nn.Flatten(), nn.Linear(input_spec.size, 64), nn.ReLU(), nn.Linear(64, feature_dim), nn.ReLU()
        )
        super().__init__(extractor, header=nn.Linear(feature_dim, num_classes))
