"""ProtoNorm: FedProto whose server spreads the global prototypes over a sphere before it sends them to clients.

Lee, Shin, Choi. Heterogeneous Federated Learning with Prototype Alignment and Upscaling, 2025.
https://arxiv.org/abs/2507.04310
Clients do the same as in FedProto. The server averages the prototypes of each class, and then moves them. On the unit
sphere, they repel each other like the electrons of the Thomson problem, until all angles between them are large
(prototype alignment). Each is then multiplied by one large factor (prototype upscaling) and sent.

Shapes: K classes with a known prototype, D representation width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from raysim.algorithms.fedproto import FedProto, GlobalPrototypes, Prototypes, Table
from raysim.core import ClientId, Fraction, NonNegative, NonNegativeInt, Positive, Server


@dataclass(frozen=True)
class ProtoNorm(FedProto):
    """FedProto with global prototypes that repel each other on a sphere, and are then scaled."""

    paper: ClassVar[str] = "Lee et al., 2025, https://arxiv.org/abs/2507.04310"
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"rebuild": True, "inference": "nearest", "nearest": "all"},
    }

    lambda_: NonNegative = 10.0
    """Weight of the pull towards the global prototypes; 0 omits it."""
    scale: Positive | None = None
    """Norm of the prototypes that clients receive; `null`: 80 for D = 512, as in the released script for CIFAR-10, and
    for other widths the norm that gives each dimension the same size, 3.54 sqrt(D)."""
    iterations: NonNegativeInt = 500
    """Number of steps in which the prototypes repel each other; 0 keeps their directions."""
    step: Positive = 0.1
    """Size of the first step, which shrinks by 5% every ten steps."""
    momentum: Fraction = 0.9
    """Share of the last movement that is added to the next step."""

    def server_update(self, server: Server[Table], ups: Mapping[ClientId, Prototypes]) -> None:
        super().server_update(server, ups)
        state = server.state
        # Eq. A; a class that no participant owns keeps its last direction as the start.
        start_KD = F.normalize(state.prototype_CD[state.known_C].double())
        unit_KD = self.spread(start_KD)
        scale = 80 * (unit_KD.shape[1] / 512) ** 0.5 if self.scale is None else self.scale
        # Eq. D
        state.prototype_CD[state.known_C] = (scale * unit_KD).to(state.prototype_CD.dtype)
        if self.searches_all:
            state.everything = GlobalPrototypes(state.known_C.nonzero()[:, 0].int(), state.prototype_CD[state.known_C])

    def spread(self, unit_KD: Tensor) -> Tensor:
        """Return unit vectors after they have repelled each other, by gradient descent with momentum on the sphere."""
        moved_KD, step = unit_KD * 0, self.step
        for i in range(self.iterations):
            moved_KD = self.momentum * moved_KD + step * repulsion(unit_KD)
            # Eq. C
            unit_KD = F.normalize(unit_KD + moved_KD)
            if i % 10 == 0:
                step *= 0.95
        return unit_KD


def repulsion(unit_KD: Tensor) -> Tensor:
    """Return the force on each unit vector: the sum of its differences to the others, each over its squared length."""
    # The squared distance of unit vectors is clamped, because two of them may be equal.
    near_KK = 1 / (2 - 2 * unit_KD @ unit_KD.T).clamp_min(1e-6)
    near_KK.fill_diagonal_(0)
    # Eq. B
    return near_KK.sum(1, keepdim=True) * unit_KD - near_KK @ unit_KD
