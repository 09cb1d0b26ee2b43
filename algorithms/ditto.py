"""Ditto: each client trains a personal model, which a penalty keeps near a global model trained as in FedAvg.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.
https://arxiv.org/abs/2012.04221
A participant takes the server's global model. It trains its personal model on its own data, with an additional term in
the loss: lambda/2 times the squared distance to the global model that it received. It also trains the global model on
its own data, and sends it back. The server averages global models, by default with equal weights; a client predicts
with its personal model.

Shapes: B batch, C classes.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    Model,
    NonNegative,
    Server,
    Task,
    UpdateOf,
    Weights,
    weights,
)
from raysim.core.ops import cross_entropy


class PersonalAndShared(nn.Module):
    """A client's personal model, which predicts, and its copy of the global model, which is sent."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.personal = model
        self.shared = copy.deepcopy(model)

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the personal model."""
        return self.personal(x)


@dataclass(frozen=True)
class Ditto(Algorithm[Model, Model, Weights]):
    """Train a global model like FedAvg, and a personal model per client, which a penalty keeps near the global one."""

    paper: ClassVar[str] = "Li et al., ICML 2021, https://arxiv.org/abs/2012.04221"
    averages = "uploads"
    stale_uploads = True
    one_architecture: ClassVar[bool] = True

    lambda_: NonNegative = 1.0
    """Weight of the pull of personal models towards the global model; with 0, a client trains alone."""
    personal_epochs: Count | None = None
    """Passes over the local data that train the personal model; `null`: `training.epochs`, as for the global model."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of global models in the mean: all equal (the paper and the released code), or by sample counts."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return PersonalAndShared(model)

    def server_start(self, server: Server[Weights], registrations: Mapping[ClientId, Any]) -> Weights:
        # All clients have this architecture, and start from these weights.
        return weights(server.task.model(server.task.architectures[0]))

    def server_send(self, server: Server[Weights], to: ClientId) -> Model:
        return Model(server.state)

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.shared.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        names = {name for name, _ in client.net.named_parameters()}
        personal = {name for name in names if name.startswith("personal.")}
        given = down.w if down is not None and self.lambda_ else None
        # The personal model is trained first. Without a pull, it then gets the same batches as a client that trains
        # alone.
        client.fit(self.personal_loss, given, epochs=self.personal_epochs, only=personal)
        client.fit(shared_loss, only=names - personal)
        return Model(weights(client.net.shared))

    def personal_loss(self, net: Any, batch: Batch, given: Weights | None) -> Tensor:
        """CE + lambda/2 * squared distance of the personal parameters to the received global parameters (constants)."""
        loss = cross_entropy(net.personal, batch, None)
        if given is None:
            return loss
        # Eq. A
        away = sum((weight - given[name]).square().sum() for name, weight in net.personal.named_parameters())
        return loss + self.lambda_ / 2 * away

    def server_update(self, server: Server[Weights], ups: Mapping[ClientId, Model]) -> None:
        weighted = self.agg == "weighted"
        # Eq. C
        server.state = server.mean({k: up.w for k, up in ups.items()}, weighted)

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net.shared, up.w)


def shared_loss(net: Any, batch: Batch, given: Any) -> Tensor:
    """The global model's CE."""
    return cross_entropy(net.shared, batch, None)  # Eq. B
