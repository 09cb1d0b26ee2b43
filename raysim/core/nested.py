"""Networks of several widths: each tensor of a narrow network is the leading block of the widest network's tensor.

These functions are shared by methods in which narrow clients train a part of the widest network.

Shapes: B batch, C classes, N samples of one client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raysim.core.algorithm import ClientId, Task
from raysim.core.messages import Model, Weights, weights


def initial(task: Task, server_model: str | None = None) -> dict[str, Weights]:
    """Return the initial weights of each client architecture and, if it differs, of the server's architecture."""
    names = dict.fromkeys([*task.architectures, *([] if server_model is None else [server_model])])
    return {name: weights(task.model(name)) for name in names}


def check_nested(nets: Mapping[str, Weights], keys: str = "clients.models") -> None:
    """Raise `ValueError` unless all architectures are widths of one network. keys: their keys in the scenario."""
    wide = widest(nets)
    for name, part in nets.items():
        if changed := [key for key in part if ".parametrizations." in f".{key}"]:
            raise ValueError(
                f"{keys}: {name} has a parametrized layer ({changed[0]}), of which a narrower network cannot have a "
                "part; remove weight_norm, spectral_norm or other parametrizations"
            )
        if not is_block(part, nets[wide]):
            raise ValueError(
                f"{keys}: {name} is not a narrower version of {wide}; choose one network in several widths, "
                "such as heterofl_cnn_a, heterofl_cnn_b and heterofl_cnn_c"
            )


def widest(nets: Mapping[str, Weights]) -> str:
    """Return the architecture whose weights have the most values."""
    return max(nets, key=lambda name: sum(w.numel() for w in nets[name].values()))


def leading(w: Tensor, shape: torch.Size) -> Tensor:
    """Return the leading block of a tensor, such as its first rows and columns, as a view."""
    return w[tuple(slice(size) for size in shape)]


def blocks(wide: Weights, nets: Mapping[str, Weights]) -> dict[str, Model]:
    """Return a copy of each architecture's part of the widest network."""
    return {
        arch: Model({name: leading(wide[name], w.shape).clone() for name, w in part.items()})
        for arch, part in nets.items()
    }


def is_block(part: Weights, wide: Weights) -> bool:
    """Return whether both have the same names, and no dimension of a tensor exceeds that of its wide counterpart."""
    return part.keys() == wide.keys() and all(
        w.dim() == wide[name].dim() and all(a <= b for a, b in zip(w.shape, wide[name].shape, strict=True))
        for name, w in part.items()
    )


def add_scaler(model: nn.Module, nets: Mapping[str, Weights]) -> None:
    """Make each linear and convolutional layer divide its outputs by its share of the widest network's outputs."""
    wide = nets[widest(nets)]
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            rate = len(layer.weight) / len(wide[f"{name}.weight"])
            if rate < 1:
                layer.register_forward_hook(partial(scale, rate))


def scale(rate: float, layer: nn.Module, given: Any, out: Tensor) -> Tensor:
    """Forward hook that divides a layer's output by its width share, so that all widths give similar values."""
    return out / rate


def add_mask(model: nn.Module, num_classes: int) -> None:
    """Make a model set the logits of classes that the client lacks to 0; `load_part` stores the client's classes."""
    # Until the client takes part, no class is masked.
    model.register_buffer("owned_C", torch.ones(num_classes, dtype=torch.bool))
    model.register_forward_hook(mask)


def mask(net: Any, given: Any, logits_BC: Tensor) -> Tensor:
    """Forward hook that sets the logits of classes that the client lacks to 0."""
    return logits_BC.masked_fill(~net.owned_C, 0.0)


def load_part(net: Any, part: Weights, label_N: Tensor) -> None:
    """Load a part of the widest network. If the network has a mask, store the classes of `label_N` in it."""
    masked = hasattr(net, "owned_C")
    net.load_state_dict(part, strict=not masked)  # only owned_C is missing in `part`
    if masked:
        net.owned_C.copy_(label_N.bincount(minlength=len(net.owned_C)) > 0)


def own_part(net: nn.Module) -> Weights:
    """Return a copy of a network's weights without the mask, which is its part of the widest network."""
    return {name: w for name, w in weights(net).items() if name != "owned_C"}


def mean_of_blocks(
    wide: Weights,
    ups: Mapping[ClientId, Model],
    weight: Mapping[ClientId, float],
    rows: Mapping[ClientId, Tensor] | None,
    combine: Callable[[Tensor], Tensor] | None = None,
) -> Weights:
    """Average each entry of the widest network over the clients that have it; entries without clients stay the same.

    ups: leading blocks of the widest network. weight: weight of each client, at least 1. rows: class ids of each
    client: only these rows of its header count; None: all rows count. combine: `Server.combine_values`, if it replaces
    the mean. Sums are in float64. Integer tensors (BatchNorm's batch counter) are taken from the first client, not
    averaged.
    """
    parts = {name: {k: up.w[name] for k, up in ups.items()} for name in wide}
    return {name: _mean(name, old, parts[name], weight, rows, combine) for name, old in wide.items()}


def _mean(
    name: str,
    old: Tensor,
    parts: Mapping[ClientId, Tensor],
    weight: Mapping[ClientId, float],
    rows: Mapping[ClientId, Tensor] | None,
    combine: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    if not old.is_floating_point():
        return next(iter(parts.values()))

    def counts(k: ClientId) -> Tensor:
        """Return the client's weight in each entry of its part. Keeping those of all clients would take much memory."""
        count = torch.zeros(parts[k].shape, dtype=torch.float64)
        count[rows[k] if rows is not None and name.startswith("header.") else ...] = weight[k]
        return count

    total = torch.zeros(old.shape, dtype=torch.float64)
    for k, part in parts.items():
        leading(total, part.shape).add_(counts(k))
    if combine is not None:
        value_K = torch.full((len(parts), *old.shape), torch.nan, dtype=torch.float64)
        for value, (k, part) in zip(value_K, parts.items(), strict=True):
            leading(value, part.shape).copy_(part.double().where(counts(k) > 0, torch.nan))
        return combine(value_K).where(total > 0, old.double()).to(old.dtype)
    mean = old.double().where(total == 0, 0.0)
    for k, part in parts.items():
        share = counts(k) / leading(total, part.shape).clamp(min=1)
        leading(mean, part.shape).add_(share * part.double())
    return mean.to(old.dtype)
