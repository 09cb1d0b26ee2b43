"""Frozen weights and low-rank adapters (LoRA): clients train, store and send only a small part of a network.

Hu et al. ICLR 2022. https://arxiv.org/abs/2106.09685
A linear layer with an adapter computes `x W^T + scaling x A^T B^T + bias`, with frozen W and bias, and A and B of a
small rank. The functions below are shared by methods in which clients have adapters of different ranks.

Shapes: m outputs and n inputs of a linear layer, r rank of its adapter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core.algorithm import Task
from raysim.core.messages import Weights, weights
from raysim.core.state import digest

_SHARED: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()
"""The frozen tensors of all networks of this process; networks share equal tensors."""


class Frozen(nn.Module):
    """A module that is never trained, always in eval mode. Other attributes are those of the wrapped module.

    Its weights are no part of a client's state, of messages and of checkpoints. All networks of a process whose frozen
    weights are equal share them.

    >>> from raysim.core import Frozen
    >>> net = nn.Sequential(Frozen(nn.Linear(64, 32)), nn.Linear(32, 10))
    >>> list(net.state_dict()), net[0].weight.requires_grad
    (['1.weight', '1.bias'], False)
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        # The wrapped module is hidden from torch, so that iterating over a network's modules does not find it.
        self.__dict__["body"] = body.eval().requires_grad_(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["body"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the wrapped module."""
        return self.__dict__["body"](*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for module in self.__dict__["body"].modules():
            for held in (module._parameters, module._buffers):
                held.update({name: _shared(fn(value)) for name, value in held.items() if value is not None})
        return super()._apply(fn, recurse)


@torch.no_grad()
def _shared(value: Tensor) -> Tensor:
    """Return the shared tensor that replaces an equal frozen tensor in all networks of this process."""
    value = value.detach()
    return _SHARED.setdefault((digest({"": value}), value.stride(), value.device), value)


class LoraLinear(nn.Module):
    """A frozen linear layer plus an adapter, whose output is 0 at first, because B is 0.

    Attributes:
        scaling: alpha / r.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.frozen = Frozen(linear)
        self.lora_A = nn.Parameter(torch.empty(rank, linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [..., m] of inputs [..., n]."""
        return self.frozen(x) + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


def lora(module: nn.Module, rank: int, alpha: float | None = None, layers: str = "") -> nn.Module:
    """Freeze a module, and give adapters to the linear layers whose names contain the regular expression `layers`.

    The module is changed; use the returned one. alpha: the adapter's product is multiplied by alpha / rank; default:
    the rank, so that the product counts as it is.

    >>> from raysim.core import lora
    >>> net = lora(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)), rank=2, layers="2")
    >>> {name: tuple(value.shape) for name, value in net.state_dict().items()}
    {'2.lora_A': (2, 32), '2.lora_B': (8, 2)}
    """
    alpha = rank if alpha is None else alpha

    def adapted(module: nn.Module, prefix: str) -> nn.Module:
        names = [name for name, one in module.named_modules(prefix=prefix) if isinstance(one, nn.Linear)]
        if not any(re.search(layers, name) for name in names):
            return Frozen(module) if module.state_dict() else module
        if isinstance(module, nn.Linear):
            return LoraLinear(module, rank, alpha)
        for name, child in [*module.named_children()]:
            setattr(module, name, adapted(child, f"{prefix}.{name}" if prefix else name))
        for name, value in [*module.named_parameters(recurse=False)]:
            delattr(module, name)
            module.register_buffer(name, value.detach(), persistent=False)
        return module

    return adapted(module, "")


# -- for methods: one network with adapters of several ranks ---------------------------------------


@dataclass(frozen=True)
class Adapted:
    """The weights of a network of one architecture, without the frozen weights."""

    w: Weights
    scaling: dict[str, float]  # name of a layer with an adapter -> its scaling


def adapted_of(model: nn.Module) -> Adapted:
    """Return a copy of the weights of a model with adapters."""
    scaling = {name: one.scaling for name, one in model.named_modules() if isinstance(one, LoraLinear)}
    return Adapted(weights(model), scaling)


def adapted_models(task: Task) -> dict[str, Adapted]:
    """Return each architecture's initial weights; all but the adapters are those of the first architecture."""
    models = {arch: adapted_of(task.model(arch)) for arch in task.architectures}
    first = next(iter(models.values()))
    return {arch: Adapted(own.w | without_adapters(first), own.scaling) for arch, own in models.items()}


def check_ranks(task: Task) -> None:
    """Raise `ValueError` unless all architectures are one frozen network, with adapters that differ only in rank."""
    forms = {arch: _form(task.model(arch)) for arch in task.architectures}
    first = next(iter(forms))
    for arch, form in forms.items():
        if not any(name.endswith("lora_A") for name in form[0]):
            raise ValueError(
                f"clients.models: {arch} has no adapters; choose networks with adapters, such as digits_vit_lora2, or "
                "build your own with raysim.core.lora"
            )
        if form != forms[first]:
            raise ValueError(
                f"clients.models: {arch} is not {first} with adapters of another rank, or its frozen weights differ; "
                "choose networks that differ only in the rank, such as digits_vit_lora2 and digits_vit_lora8, and load "
                "their frozen weights from one file, or draw them with the same seed"
            )


def _form(model: nn.Module) -> tuple[dict[str, list[int]], list[str]]:
    """Return the shapes of a model's weights, with the rank left out, and digests of its frozen weights."""
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    for name, shape in shapes.items():
        if name.endswith(("lora_A", "lora_B")):
            del shape[0 if name.endswith("lora_A") else 1]
    frozen = [vars(one)["body"].state_dict() for one in model.modules() if isinstance(one, Frozen)]
    return shapes, [digest(dict(held)) for held in (*frozen, model.named_buffers())]


def rank_of(w: Weights, layer: str) -> int:
    """Return the rank of a layer's adapter."""
    return len(w[f"{layer}.lora_A"])


def without_adapters(adapted: Adapted) -> Weights:
    """Return the weights that do not belong to adapters, such as those of the header."""
    names = {f"{layer}.{part}" for layer in adapted.scaling for part in ("lora_A", "lora_B")}
    return {name: value for name, value in adapted.w.items() if name not in names}


Factors = tuple[Tensor, Tensor]
"""The factors [m, R] and [R, n], in float64, of a matrix that is never computed, because layers may be large."""


def factors(one: Adapted, layer: str, share: Tensor | float = 1.0) -> Factors:
    """Return `scaling B A`, the product that an adapter adds to the weights of its layer, as factors.

    share: factor of the product, or of each of its r parts [r].
    """
    b_mr = one.w[f"{layer}.lora_B"].double()
    return one.scaling[layer] * share * b_mr, one.w[f"{layer}.lora_A"].double()
