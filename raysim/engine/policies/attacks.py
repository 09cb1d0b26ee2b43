"""Malicious clients, and their attacks on samples or uploads (section `adversary`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.core.fields import Positive
from raysim.core.seeds import seeded

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from raysim.core.algorithm import ClientId


class Attack(Protocol):
    """An attack: a frozen dataclass whose fields are the keys of `adversary.attack`.

    It may also have a method `labels(label_N, num_classes)`, which returns other labels for the training samples of a
    malicious client, int64 [N].
    """

    def change(self, delta: Tensor, honest: Sequence[Tensor], rng: torch.Generator) -> Tensor:
        """Return the tensor that a malicious client sends instead of one tensor of its upload, in the same shape.

        delta: the tensor; of a model or header that the server had sent, its difference from what the client got.
        honest: the same tensor of all honest participants for whom it has the same shape. rng: keyed by run, round and
        client.
        """


@dataclass(frozen=True)
class SignFlip:
    """Send the client's own update with the opposite sign, scaled."""

    factor: Positive = 1.0
    """Factor of the update."""

    def change(self, delta: Tensor, honest: Sequence[Tensor], rng: torch.Generator) -> Tensor:
        """See `Attack`."""
        return -self.factor * delta


@dataclass(frozen=True)
class Noise:
    """Add Gaussian noise to the client's own update."""

    std: Positive = 1.0
    """Standard deviation of the noise."""

    def change(self, delta: Tensor, honest: Sequence[Tensor], rng: torch.Generator) -> Tensor:
        """See `Attack`."""
        import torch

        return delta + self.std * torch.randn(delta.shape, generator=rng, dtype=delta.dtype)


@dataclass(frozen=True)
class InnerProduct:
    """Send the honest clients' mean update with the opposite sign, scaled (Xie et al., UAI 2019, arXiv 1903.03936)."""

    factor: Positive = 1.0
    """Factor of the mean."""

    def change(self, delta: Tensor, honest: Sequence[Tensor], rng: torch.Generator) -> Tensor:
        """See `Attack`. If no honest tensor has this shape, the client's own tensor is taken as the mean."""
        import torch

        mean = torch.stack(list(honest)).double().mean(0).to(delta.dtype) if honest else delta
        return -self.factor * mean


@dataclass(frozen=True)
class LabelFlip:
    """Train on wrong labels: class c becomes class C - 1 - c, of C classes."""

    def change(self, delta: Tensor, honest: Sequence[Tensor], rng: torch.Generator) -> Tensor:
        """See `Attack`."""
        return delta

    def labels(self, label_N: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """Return the wrong labels."""
        return num_classes - 1 - label_N


ATTACKS: dict[str, type] = {
    "sign_flip": SignFlip,
    "noise": Noise,
    "inner_product": InnerProduct,
    "label_flip": LabelFlip,
}
"""Name in a scenario -> attack. A custom attack is named as `./mine.py:Mine`."""


@dataclass(frozen=True)
class Malicious:
    """The malicious clients of a run. As a stage, it changes their uploads; see `raysim.engine.stages`."""

    clients: frozenset[ClientId]
    attack: Attack
    seed: int

    def __call__(self, changes: Mapping[ClientId, Mapping[str, Tensor]], t: int) -> dict[ClientId, dict[str, Tensor]]:
        """Return the uploads of the malicious participants of round `t`."""
        honest = [changes[k] for k in changes if k not in self.clients]
        changed = {}
        for k in changes.keys() & self.clients:
            rng = seeded(self.seed, "attack", t, k)
            sent = {
                name: self.attack.change(delta, [of[name] for of in honest if _alike(of, name, delta)], rng)
                for name, delta in changes[k].items()
            }
            if any(sent[name] is not delta for name, delta in changes[k].items()):
                changed[k] = sent
        return changed

    def labels(self, k: ClientId, label_N: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """Return the labels that client k trains on."""
        change: Any = getattr(self.attack, "labels", None)
        return label_N if change is None or k not in self.clients else change(label_N, num_classes)


def _alike(changes: Mapping[str, Tensor], name: str, tensor: Tensor) -> bool:
    return name in changes and changes[name].shape == tensor.shape
