"""A method with a mistake that no run on CPUs shows: it leaves a tensor on the CPU."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from raysim.core import Algorithm, Batch, Client


@dataclass(frozen=True)
class Misplaced(Algorithm[None, None, None]):
    """Standalone training with smoothed labels."""

    paper: ClassVar[str] = "none"

    def client_update(self, client: Client, down: None) -> None:
        prior_C = torch.ones(client.task.num_classes, device="cpu") / client.task.num_classes
        client.fit(self.loss, prior_C)

    def loss(self, net: Any, batch: Batch, given: Tensor) -> Tensor:
        log_BC = net(batch.x).log_softmax(1)
        return batch.mean(-log_BC.gather(1, batch.y[:, None])[:, 0] - 0.1 * (log_BC * given).sum(1))
