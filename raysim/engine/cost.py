"""What a client's work costs, before any of it is done."""

from __future__ import annotations

from functools import partial

import torch

from raysim.core.meter import flops_of
from raysim.engine.world import World


def forward_flops(world: World) -> dict[str, float]:
    """Floating-point operations of one sample's forward pass, by architecture."""
    found = {}
    for name in world.task.architectures:
        # Zeros in the shape of two images: BatchNorm in eval mode and convolutions count the same on any values.
        raw_BHWC = torch.zeros(2, *world.image_shape_HWC, dtype=torch.uint8)
        model = world.fresh_model(name).eval()
        with torch.no_grad():
            found[name] = flops_of(partial(model, world.transform.plain(raw_BHWC))) / 2
    return found
