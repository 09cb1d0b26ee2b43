"""2x2 max pooling that is faster on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core.torch_workarounds import is_transformed

FEWEST = 2**16
"""Number of input elements from which on `MaxPool2x2` is faster than torch's pooling, on one core of an AMD EPYC."""


class MaxPool2x2(nn.MaxPool2d):
    """2x2 max pooling. Outputs and gradients have the same bits as those of `nn.MaxPool2d(2)`.

    Reason: on a CPU, torch's pooling uses vector instructions only if channels are the last dimension in memory.
    Therefore the input is copied to that order, pooled, and the output copied back. This makes pooling 2 to 5 times as
    fast, and a training step of CNN-1 1.1 times as fast.
    Delete when: `nn.MaxPool2d(2)` is as fast with channels in the usual order.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the maxima [B, C, H // 2, W // 2] of the 2x2 squares."""
        small = x_BCHW.dim() < 4 or x_BCHW.numel() < FEWEST
        if small or x_BCHW.device.type != "cpu" or is_transformed(x_BCHW):
            return F.max_pool2d(x_BCHW, 2)
        maxima: Tensor = _Pool.apply(x_BCHW)
        return maxima


class _Pool(torch.autograd.Function):
    """Pooling of channels-last images, and torch's gradient for the usual order, which is fast."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor) -> Tensor:
        """Return the maxima [B, C, H // 2, W // 2], and keep their positions in the images."""
        last = x_BCHW.contiguous(memory_format=torch.channels_last)
        maxima, positions = F.max_pool2d_with_indices(last, [2, 2])
        # Copies, because `contiguous` keeps the strides of 1x1 maps, by which a convolution chooses its arithmetic.
        usual = torch.contiguous_format
        ctx.save_for_backward(x_BCHW, positions.clone(memory_format=usual))
        return maxima.clone(memory_format=usual)

    @staticmethod
    def backward(ctx: Any, grad_BCHW: Tensor) -> Tensor:
        """Return the gradient of the input, [B, C, H, W]."""
        x_BCHW, positions = ctx.saved_tensors
        gradient = torch.ops.aten.max_pool2d_with_indices_backward
        return gradient(grad_BCHW, x_BCHW, [2, 2], [2, 2], [0, 0], [1, 1], False, positions)
