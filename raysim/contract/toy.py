"""The toy task in which the contract runs algorithms: C = 4 classes, D = 8, images of 4 x 4 pixels, a few clients.

Shapes: N samples of one client, M samples of all clients, C classes, D representation width, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.common.shards import Shards
from raysim.core.adapters import lora
from raysim.core.algorithm import AnyAlgorithm, ClientId, pixels
from raysim.core.data import Augmentation, Samples
from raysim.core.fit import LocalTraining
from raysim.core.seeds import global_seed, seeded
from raysim.engine.plan import Plan

SEED, C, D, SIDE, ROUNDS = 7, 4, 8, 4, 8
LOCAL = LocalTraining(epochs=1, batch_size=6, lr=0.1, momentum=0.5)

Labels = Sequence[Sequence[int]]
FOUR: Labels = ([0, 1] * 8, [1, 2] * 6 + [1], [2, 3] * 7, [3, 0, 1] * 4)
"""Labels of four clients of different sizes; the last batch of the second client has a single sample."""
PUBLIC = [0, 1, 2, 3] * 3
"""Labels of the public data of all clients and the server."""

STAGED = ("short", "long")
RANKS = {"rank1": 1, "rank2": 2, "rank4": 4}
FAMILIES = (("flat", "norm", "deep"), ("norm", "wide", "thin"), STAGED, tuple(RANKS))
"""Sets of client architectures: three different networks; one network in three widths; two networks with two stages
each; and a frozen network with adapters of three ranks."""


class ToyTransform:
    """Scaling of pixels to [0, 1]; augmentation adds a little noise, so that draws from `rng` change the result."""

    draws = True

    def plain(self, raw_BHWC: Tensor) -> Tensor:
        """Return images [B, 1, H, W] in [0, 1]."""
        return raw_BHWC.permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 255

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator) -> Sequence[Augmentation]:
        """Return functions that give the images of `plain` with noise."""
        pixels = like.permute(0, 3, 1, 2).shape[1:]
        return [partial(self._noisy, noise=torch.randn(size, *pixels, generator=rng)) for size in sizes]

    def _noisy(self, raw_BHWC: Tensor, noise: Tensor) -> Tensor:
        return self.plain(raw_BHWC) + 0.02 * noise


class ToyNet(nn.Module):
    """A tiny network; `norm`, `wide`, `thin` and `broad` have a convolution and BatchNorm, `RANKS` have adapters."""

    def __init__(self, name: str, feature_dim: int = D) -> None:
        super().__init__()
        pixels, width = SIDE * SIDE, feature_dim

        def convolved(channels: int) -> list[nn.Module]:
            return [
                nn.Conv2d(1, channels, 3),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(4 * channels, width),
            ]

        def staged(*rest: nn.Module) -> list[nn.Module]:
            return [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), *rest]

        layers: Mapping[str, Callable[[], list[nn.Module]]] = {
            "flat": lambda: [nn.Flatten(), nn.Linear(pixels, width)],
            "deep": lambda: [nn.Flatten(), nn.Linear(pixels, 12), nn.ReLU(), nn.Linear(12, width)],
            "norm": lambda: convolved(3),
            "wide": lambda: convolved(5),
            "thin": lambda: convolved(2),
            "broad": lambda: convolved(6),
            "short": lambda: staged(nn.Linear(12, width)),
            "long": lambda: staged(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, width)),
        }
        with global_seed(SEED, "frozen") if name in RANKS else nullcontext():
            layered = nn.Sequential(*layers["deep" if name in RANKS else name](), nn.ReLU())
        self.extractor = lora(layered, RANKS[name], alpha=8) if name in RANKS else layered
        self.header = nn.Linear(width, C)
        self.stages: tuple[nn.Module, ...] = (self.extractor,)
        if name in STAGED:
            self.stages = (layered[:2], layered[2:])

    def features(self, x: Tensor) -> Tensor:
        """Return the representation [B, D]."""
        return self.extractor(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        return self.header(self.features(x))


def toy_model(name: str, *key: str, feature_dim: int = D) -> ToyNet:
    """Return a new network with its architecture's initial weights; `key` names a purpose with separate weights."""
    with global_seed(SEED, "init", name, *key):
        return ToyNet(name, feature_dim)


def toy_encoder(name: str) -> Callable[[Tensor], Tensor]:
    """Return the encoder `pixels` for any name."""
    return pixels


def toy_samples(labels: Sequence[int], k: ClientId) -> Samples:
    """Return images of noise with one bright quarter, which determines the class."""
    rng = seeded(SEED, "toy", k)
    raw_N = torch.randint(0, 90, (len(labels), SIDE, SIDE, 1), generator=rng, dtype=torch.uint8)
    half = SIDE // 2
    for i, label in enumerate(labels):
        top, left = half * (label // 2), half * (label % 2)
        raw_N[i, top : top + half, left : left + half] += 150
    return Samples(raw_N, torch.tensor(labels), ToyTransform())


def toy_spec(algorithm: AnyAlgorithm, labels: Labels, models: Sequence[str], **changes: Any) -> Plan:
    """Return the specification of a run in the toy task. Clients are tested on their training samples."""
    whole = np.arange(sum(map(len, labels)))
    train = Shards(whole, np.cumsum([0, *map(len, labels)]))
    none = Shards(whole[:0], np.zeros(len(labels) + 1, np.int64))
    public = toy_samples(PUBLIC, len(labels))
    settings: dict[str, Any] = {
        "num_rounds": ROUNDS,
        "encoder": toy_encoder,
        "labels": np.concatenate([np.asarray(one, np.int64) for one in labels]),
        "public": (public.raw_N.numpy(), public.y.numpy()),
    }
    return Plan(
        algorithm, SEED, C, D, tuple(models), ToyNet, ToyTransform(), LOCAL, train, none, train, (1,),
        **(settings | changes),
    )  # fmt: skip
