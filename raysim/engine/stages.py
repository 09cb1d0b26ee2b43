"""Stages between a client's upload and `server_update`, at the server: what malicious clients do to their uploads.

A stage sees a message as its tensors of floating-point numbers, by path. If the client got a message of the same class
and shapes, they are the differences from it, so an attack on a model turns the client's step and not its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

from torch import Tensor

from raysim.core.algorithm import ClientId
from raysim.core.messages import is_message, mapped

STATISTICS = ("running_mean", "running_var")
"""Buffers of BatchNorm, which no stage changes: a negative variance would only make the network fail."""

Changes = Mapping[str, Tensor]
"""The floating-point tensors of an upload by path, or their differences from what the client got."""


class Stage(Protocol):
    """What happens to the uploads of a round before the method sees them."""

    def __call__(self, changes: Mapping[ClientId, Changes], t: int) -> Mapping[ClientId, Changes]:
        """Return the changed uploads of round `t`, without those that stay as they are; a pure function."""


def apply(stage: Stage, ups: Mapping[ClientId, Any], down_of: Callable[[ClientId], Any], t: int) -> dict[ClientId, Any]:
    """Return the uploads of round `t` after a stage. down_of: what a client got in this round.

    An upload that the stage does not change is returned itself, because (up - down) + down can have other bits.
    """
    downs = {k: _reference(up, down_of(k)) for k, up in ups.items()}
    changed = stage({k: _changes(up, downs[k]) for k, up in ups.items()}, t)
    return {k: _with(up, downs[k], changed[k]) if k in changed else up for k, up in ups.items()}


def tensors_of(msg: Any, path: str = "") -> dict[str, Tensor]:
    """Return the floating-point tensors of a message by path, such as `w.header.weight`, in order."""
    if isinstance(msg, Tensor):
        changes = msg.is_floating_point() and not path.endswith(STATISTICS)
        return {path: msg} if changes else {}
    parts: list[tuple[Any, Any]] = []
    if isinstance(msg, Mapping):
        parts = list(msg.items())
    elif isinstance(msg, tuple | list):
        parts = list(enumerate(msg))
    elif msg is not None and is_message(msg):
        parts = [(field.name, getattr(msg, field.name)) for field in fields(msg)]
    return {name: one for key, part in parts for name, one in tensors_of(part, f"{path}.{key}".strip(".")).items()}


def _reference(up: Any, down: Any) -> Mapping[str, Tensor] | None:
    """Return the tensors that an upload is compared with; None: the client got no message of its class and shapes."""
    if type(up) is not type(down):
        return None
    had, has = tensors_of(down), tensors_of(up)
    same = [(name, tensor.shape) for name, tensor in had.items()] == [(name, one.shape) for name, one in has.items()]
    return had if same else None


def _changes(up: Any, reference: Mapping[str, Tensor] | None) -> Changes:
    tensors = tensors_of(up)
    return tensors if reference is None else {name: one - reference[name] for name, one in tensors.items()}


def _with(up: Any, reference: Mapping[str, Tensor] | None, changes: Changes) -> Any:
    """Return the upload with other tensors."""
    new = {
        id(tensor): changes[name] if reference is None else reference[name] + changes[name]
        for name, tensor in tensors_of(up).items()
    }
    return mapped(Tensor, lambda tensor: new.get(id(tensor), tensor), up)
