"""Stages at the server between an upload and `server_update`: attacks, clipping, noise, staleness, and seals.

A stage sees a message as its tensors of floating-point numbers, by path. If the client got a message of the same class
and shapes, they are the differences from it, so an attack on a model turns the client's step and not its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from torch import Tensor

from raysim.common.errors import RunError
from raysim.core.algorithm import ClientId
from raysim.core.messages import is_message, mapped
from raysim.core.private import Sealed

STATISTICS = ("running_mean", "running_var")
"""BatchNorm's buffers, which no stage changes, because a negative variance would only make the network fail."""

Changes = Mapping[str, Tensor]
"""Path -> floating-point tensor of an upload, or its difference from the tensor that the client received."""


class Stage(Protocol):
    """A function that changes uploads of a round before the method gets them."""

    def __call__(self, changes: Mapping[ClientId, Changes], t: int) -> Mapping[ClientId, Changes]:
        """Return only the uploads of round `t` that the stage changes. Must be a pure function."""


@dataclass(frozen=True)
class Uploads:
    """The uploads of a round as they arrive at the server, with the messages that their clients received."""

    ups: Mapping[ClientId, Any]
    # Received tensors to compare with; None: the upload is not compared.
    references: Mapping[ClientId, Mapping[str, Tensor] | None]
    changes: Mapping[ClientId, Changes]

    @classmethod
    def of(cls, ups: Mapping[ClientId, Any], down_of: Callable[[ClientId], Any]) -> Uploads:
        """Compare uploads with the messages that their clients received. down_of: client -> its message."""
        references = {k: _reference(up, down_of(k)) for k, up in ups.items()}
        return cls(ups, references, {k: _changes(up, references[k]) for k, up in ups.items()})

    def after(self, stages: Sequence[Stage], t: int) -> Uploads:
        """Return the uploads of round `t` after these stages are applied.

        An upload that no stage changes is returned itself, because (up - down) + down can have other bits.
        """
        changes = dict(self.changes)
        for stage in stages:
            changes |= stage(changes, t)
        ups = {
            k: up if changes[k] is self.changes[k] else _with(up, self.references[k], changes[k])
            for k, up in self.ups.items()
        }
        return Uploads(ups, self.references, changes)

    def caught_up(self, factors: Mapping[ClientId, float], now_of: Callable[[ClientId], Any]) -> Uploads:
        """Return the uploads as if their clients had started from the server's current message, with scaled changes.

        factors: of the uploads that are stale or scaled; a change is multiplied by it. now_of: the message that a
        client would get. An upload that is not compared with what its client got stays as it is.
        """
        ups, references, changes = dict(self.ups), dict(self.references), dict(self.changes)
        for k, then in self.references.items():
            if k not in factors or then is None or (now := _reference(ups[k], now_of(k))) is None:
                continue
            references[k] = now
            changes[k] = {name: factors[k] * one for name, one in self.changes[k].items()}
            ups[k] = _with(self.ups[k], now, changes[k])
        return Uploads(ups, references, changes)

    def sealed(self) -> dict[ClientId, Any]:
        """Return uploads that only a private mean can read. Raises `RunError` for BatchNorm's statistics."""
        return {k: self._sealed(k) for k in self.ups}

    def _sealed(self, k: ClientId) -> Any:
        seals, reference = {}, self.references[k]
        for name, tensor in _floats(self.ups[k]).items():
            if name.endswith(STATISTICS):
                raise RunError(
                    f"privacy: uploads contain BatchNorm's statistics ({name}), which are neither clipped nor noised; "
                    "choose networks without BatchNorm, or a method that does not send them"
                )
            seals[id(tensor)] = Sealed(self.changes[k][name], None if reference is None else reference[name])
        return mapped(Tensor, lambda tensor: seals.get(id(tensor), tensor), self.ups[k])


def tensors_of(msg: Any) -> dict[str, Tensor]:
    """Return path (as `w.header.weight`) -> floating-point tensor, for the tensors that stages may change."""
    return {name: tensor for name, tensor in _floats(msg).items() if not name.endswith(STATISTICS)}


def _floats(msg: Any, path: str = "") -> dict[str, Tensor]:
    if isinstance(msg, Tensor):
        return {path: msg} if msg.is_floating_point() else {}
    parts: list[tuple[Any, Any]] = []
    if isinstance(msg, Mapping):
        parts = list(msg.items())
    elif isinstance(msg, tuple | list):
        parts = list(enumerate(msg))
    elif msg is not None and is_message(msg):
        parts = [(field.name, getattr(msg, field.name)) for field in fields(msg)]
    return {name: one for key, part in parts for name, one in _floats(part, f"{path}.{key}".strip(".")).items()}


def _reference(up: Any, down: Any) -> Mapping[str, Tensor] | None:
    """Return the received tensors to compare an upload with; None: the received message has another class or shapes."""
    if type(up) is not type(down):
        return None
    had, has = tensors_of(down), tensors_of(up)
    same = [(name, tensor.shape) for name, tensor in had.items()] == [(name, one.shape) for name, one in has.items()]
    return had if same else None


def _changes(up: Any, reference: Mapping[str, Tensor] | None) -> Changes:
    tensors = tensors_of(up)
    return tensors if reference is None else {name: one - reference[name] for name, one in tensors.items()}


def _with(up: Any, reference: Mapping[str, Tensor] | None, changes: Changes) -> Any:
    """Return a copy of the upload with other tensors."""
    new = {
        id(tensor): changes[name] if reference is None else reference[name] + changes[name]
        for name, tensor in tensors_of(up).items()
    }
    return mapped(Tensor, lambda tensor: new.get(id(tensor), tensor), up)
