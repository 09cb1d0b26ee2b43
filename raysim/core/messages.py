"""Messages between clients and the server: their form, packing and size in bytes.

A message is a frozen dataclass of tensors, numbers and (nested) dicts or tuples of them. No other data passes between
clients and server. Packing turns a message into plain bytes that share no memory with the sender, in one format for
both backends, so that the in-process backend isolates sender from receiver exactly as Ray does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar, cast, dataclass_transform

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

T = TypeVar("T")
Weights = dict[str, Tensor]
_FIELDS = "__raysim_message__"
"""Attribute of a message class that lists its fields, because cached properties are not part of a message."""

DECLARE = "return a dataclass that is declared with @message, or None"
"""The remedy if a hook returns an object that is no message."""


@dataclass_transform(frozen_default=True)
def message(cls: type[T]) -> type[T]:
    """Make a class a message: a frozen dataclass of tensors and numbers, registered as a pytree of torch.

    >>> import torch
    >>> from raysim.core import message
    >>> @message
    ... class Means:
    ...     class_S: torch.Tensor
    ...     mean_SD: torch.Tensor
    >>> wire_size(Means(torch.tensor([0, 3]), torch.zeros(2, 4))).components  # bytes of each field
    {'class_S': 16, 'mean_SD': 32}
    """
    made = dataclass(frozen=True)(cls)
    names = [field.name for field in fields(made)]  # type: ignore[arg-type]
    pytree.register_pytree_node(
        made,
        lambda msg: ([getattr(msg, name) for name in names], None),
        lambda values, _: made(*values),
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )
    setattr(made, _FIELDS, names)
    return made


def is_message(value: object) -> bool:
    """Return whether a value may be sent: None, or an object whose class is declared with `@message`."""
    return value is None or hasattr(type(value), _FIELDS)


def leaves(msg: object) -> Iterator[Any]:
    """Yield the tensors and numbers of a message, in order; `None` is skipped.

    It replaces `torch.utils._pytree.tree_leaves`, which takes ten times as long: noticeable with small models.
    """
    if isinstance(msg, Tensor):
        yield msg
    elif isinstance(msg, Mapping):
        for value in msg.values():
            yield from leaves(value)
    elif isinstance(msg, tuple | list):
        for value in msg:
            yield from leaves(value)
    elif hasattr(type(msg), _FIELDS):
        for name in getattr(type(msg), _FIELDS):
            yield from leaves(getattr(msg, name))
    elif msg is not None:
        yield msg


def mapped(kind: type[Any], change: Callable[[Any], Any], msg: Any) -> Any:
    """Return `msg` with `change` applied to every leaf of type `kind`."""
    if isinstance(msg, kind):
        return change(msg)
    if isinstance(msg, dict):
        return {name: mapped(kind, change, value) for name, value in msg.items()}
    if isinstance(msg, tuple | list):
        changed = [mapped(kind, change, value) for value in msg]
        return type(msg)(*changed) if hasattr(msg, "_fields") else type(msg)(changed)
    if hasattr(type(msg), _FIELDS):
        copy = object.__new__(type(msg))  # copies without calling `__post_init__`, which may expect tensors
        for name in getattr(type(msg), _FIELDS):
            object.__setattr__(copy, name, mapped(kind, change, getattr(msg, name)))
        return copy
    return msg


def weights(module: nn.Module) -> Weights:
    """Return a copy of a module's parameters and buffers, detached from training.

    >>> from torch import nn
    >>> from raysim.core import weights
    >>> net = nn.Linear(2, 1)
    >>> copy = weights(net)
    >>> copy["bias"].requires_grad, copy["bias"].data_ptr() == net.bias.data_ptr()
    (False, False)
    """
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def extractor_weights(model: nn.Module) -> Weights:
    """Return a copy of the weights of a `SplitModel` without its header, detached from training.

    >>> from torch import nn
    >>> from raysim import SplitNet
    >>> from raysim.core import extractor_weights
    >>> list(extractor_weights(SplitNet(nn.Linear(4, 2), nn.Linear(2, 3))))
    ['extractor.weight', 'extractor.bias']
    """
    return {name: value for name, value in weights(model).items() if not name.startswith("header.")}


@message
class Header:
    """The last linear layer.

    >>> from torch import nn
    >>> from raysim.core import Header, weights
    >>> {name: tuple(value.shape) for name, value in Header(weights(nn.Linear(8, 4))).w.items()}
    {'weight': (4, 8), 'bias': (4,)}
    """

    w: Weights  # weight [C, D], bias [C]


@message
class Extractor:
    """The extractor of a model, all but its last linear layer: parameters and BatchNorm's running statistics.

    >>> from torch import nn
    >>> from raysim import SplitNet
    >>> from raysim.core import Extractor, extractor_weights
    >>> list(Extractor(extractor_weights(SplitNet(nn.Linear(4, 2), nn.Linear(2, 3)))).w)
    ['extractor.weight', 'extractor.bias']
    """

    w: Weights


@message
class Model:
    """A whole model: its parameters and, optionally, BatchNorm's running statistics.

    >>> from torch import nn
    >>> from raysim.core import Model, weights
    >>> list(Model(weights(nn.BatchNorm1d(2))).w)
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """

    w: Weights


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as bytes, which can be read without torch and shared through Ray's object store without a copy."""

    data: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> PackedTensor:
        copied = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        flat = copied.view(-1)
        return cls(flat.view(torch.uint8).numpy(), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a new tensor with a copy of the packed bytes, which may be read-only shared memory."""
        flat = torch.empty(len(self.data), dtype=torch.uint8)
        flat.numpy()[:] = self.data
        tensor = flat.view(getattr(torch, self.dtype)).reshape(self.shape)
        return tensor if device == "cpu" else tensor.to(device)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor has exactly these bytes."""
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return np.array_equal(flat.view(torch.uint8).numpy(), self.data)


def pack(msg: T) -> T:
    """Return `msg` with every tensor replaced by its bytes. Tensors that share storage are packed once."""
    seen: dict[tuple[Any, ...], PackedTensor] = {}
    keep = []  # holds every tensor until the end, so that no storage address is reused

    def one(tensor: Tensor) -> PackedTensor:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in seen or not tensor.numel():
            keep.append(tensor)
            seen[key] = PackedTensor.of(tensor)
        return seen[key]

    return cast(T, mapped(Tensor, one, msg))


def unpack(msg: T, device: torch.device | str = "cpu") -> T:
    """Return the message that the receiver gets: the same values in separate memory."""
    seen: dict[int, Tensor] = {}

    def one(packed: PackedTensor) -> Tensor:
        if id(packed) not in seen:
            seen[id(packed)] = packed.tensor(device)
        return seen[id(packed)]

    return cast(T, mapped(PackedTensor, one, msg))


class WireSize(NamedTuple):
    """The size of a message."""

    bytes: int  # tensors at their dtype, Python numbers as 8 bytes, `None` as 0
    params: int  # the number of values, whatever their dtype
    components: dict[str, int]  # bytes by field


def wire_size(msg: Any) -> WireSize:
    """Return the size of a message in bytes, in values, and in bytes by field.

    If its class has a method `counted`, the size is that of the message which this method returns. A class has this
    method if it holds the paper's message in another basis that is cheaper to compute with. The method returns the
    paper's tensors, on torch's `meta` device if only their shapes matter.
    Raises `TypeError` if it is no message: not declared with `@message`, or not of tensors and numbers.
    """
    if not is_message(msg):
        raise TypeError(f"the hook returned a {type(msg).__name__}; {DECLARE}")
    sent = msg.counted() if hasattr(msg, "counted") else msg
    components = {name: _field_bytes(name, getattr(sent, name)) for name in getattr(type(sent), _FIELDS, ())}
    params = sum(leaf.numel() if isinstance(leaf, Tensor) else 1 for leaf in leaves(sent))
    return WireSize(sum(components.values()), params, components)


def _field_bytes(name: str, value: object) -> int:
    """Return the bytes of a field. Raises `TypeError` with the name of the field if its value cannot be sent."""
    try:
        return sum(_leaf_bytes(leaf) for leaf in leaves(value))
    except TypeError as error:
        raise TypeError(f"the field {name} of a message contains {error}") from None


def nonfinite(msg: object) -> bool:
    """Return whether any floating-point number in a message is NaN or infinite."""
    return any(not _finite(leaf) for leaf in leaves(msg))


def _finite(leaf: object) -> bool:
    if isinstance(leaf, float):
        return math.isfinite(leaf)
    return not isinstance(leaf, Tensor) or bool(leaf.isfinite().all())


def _leaf_bytes(leaf: object) -> int:
    if isinstance(leaf, Tensor):
        if leaf.layout is not torch.strided:
            raise TypeError("a sparse tensor; send dense tensors, such as tensor.to_dense()")
        return leaf.numel() * leaf.element_size()
    if isinstance(leaf, bool | int | float):
        if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
            raise TypeError("a whole number of more than 64 bits; send a smaller number, or a float")
        return 8
    raise TypeError(
        f"a value of type {type(leaf).__name__}; send only tensors, Python's numbers, such as float(value), and other "
        "messages, whose classes are declared with @message"
    )
