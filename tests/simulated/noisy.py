"""A method that draws random numbers on the client's device, before and after its training."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from raysim.core import Algorithm, Client
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class Noisy(Algorithm[None, None, None]):
    """Standalone training, with noise added to the parameters before and after it."""

    paper: ClassVar[str] = "none"

    def client_update(self, client: Client, down: None) -> None:
        self.add_noise(client.net)
        client.fit(cross_entropy)
        self.add_noise(client.net)

    def add_noise(self, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
