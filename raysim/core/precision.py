"""Lower precision in local training: autocast for the loss, and scaling of a float16 loss.

Parameters, their gradients and the optimizer's state stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

Precision = Literal["float32", "bfloat16", "float16"]

_LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}

SCALE = 2.0**15
"""Initial scale of a float16 loss: the largest power of 2 in float16. It is the gradient of the scaled loss."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which networks compute in this precision."""
    if precision == "float32":
        return nullcontext()
    # Autocast caches converted weights. If a loss first runs a network under `no_grad`, cached weights have no
    # gradient, and the loss would get none either.
    return torch.autocast(device.type, _LOWER[precision], cache_enabled=False)


def as_float32(value: Tensor) -> Tensor:
    """Return a bfloat16 or float16 tensor as float32, and any other tensor unchanged."""
    return value.float() if value.dtype in _LOWER.values() else value


class Backward:
    """The backward pass and the optimizer step. A float16 loss is scaled up, so that small gradients do not vanish.

    The scale begins anew in each local training, as the optimizer's state does. A step whose gradients exceed float16
    is left out, and the scale is halved.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        # A scaler that is not enabled computes the plain backward pass and steps.
        self.scaler = GradScaler(device.type, init_scale=SCALE, enabled=precision == "float16")

    def __call__(self, loss: Tensor, optimizers: Sequence[Any], clip: Callable[[], object] | None) -> None:
        """Compute the gradients of `loss`, clip them, and let the optimizers take a step."""
        self.scaler.scale(loss).backward()
        # The scaler raises an error for an optimizer whose parameters have no gradient.
        having = [one for one in optimizers if any(p.grad is not None for g in one.param_groups for p in g["params"])]
        for optimizer in having:
            self.scaler.unscale_(optimizer)
        if clip is not None:
            clip()
        for optimizer in having:
            self.scaler.step(optimizer)
        if having:
            self.scaler.update()
