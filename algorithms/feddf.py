"""FedDF: the server averages the models of each architecture, then distils each average from the ensemble of all.

Lin, Kong, Stich, Jaggi. NeurIPS 2020. https://arxiv.org/abs/2006.07242
Participants start from the server's model of their architecture, train it and send it back whole. The server averages
the models of each architecture, and trains each average on public data towards the mean logits of all received models.

Shapes: P public samples, B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    LocalTraining,
    Model,
    NonNegativeInt,
    Positive,
    Server,
    UpdateOf,
    Weights,
    weights,
)
from raysim.core.ops import cross_entropy, kl, weighted_mean

Received = Mapping[str, list[tuple[int, Weights]]]
"""Architecture -> (number of a client's samples, the client's model), for each client with an upload."""


@dataclass(frozen=True)
class FedDF(Algorithm[Model, Model, dict[str, Model]]):
    """Average the models of each architecture, and train the averages on public data towards the ensemble of all."""

    paper: ClassVar[str] = "Lin et al., NeurIPS 2020, https://arxiv.org/abs/2006.07242"
    stale_uploads = True
    public_data: ClassVar[bool] = True

    distill_epochs: NonNegativeInt = 1
    """The server's passes over the public data for each architecture; 0: FedAvg for each architecture."""
    distill_lr: Positive = 1e-3
    """Learning rate of the server's Adam."""
    distill_batch: Count = 128
    """Public samples per step of the server."""

    def server_start(self, server: Server[dict[str, Model]], registrations: Mapping[ClientId, Any]) -> dict[str, Model]:
        return {name: Model(weights(server.task.model(name))) for name in server.task.architectures}

    def server_send(self, server: Server[dict[str, Model]], to: ClientId) -> Model:
        return server.state[server.arch[to]]

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(cross_entropy)  # Eq. A
        return Model(weights(client.net))

    def server_update(self, server: Server[dict[str, Model]], ups: Mapping[ClientId, Model]) -> None:
        received: dict[str, list[tuple[int, Weights]]] = {}
        for k, up in ups.items():
            received.setdefault(server.arch[k], []).append((server.num_samples[k], up.w))
        updated = {name: weighted_mean(models) for name, models in received.items()}  # Eq. B
        if self.distill_epochs:
            teacher_PC = self.ensemble(server, received)
            updated = {name: self.distilled(server, name, mean, teacher_PC) for name, mean in updated.items()}
        server.state = server.state | {name: Model(w) for name, w in updated.items()}

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)

    def ensemble(self, server: Server[Any], received: Received) -> Tensor:
        """Return the mean of the logits of all received models on the public data, [P, C].

        The models of an architecture share one network.
        """
        assert server.task.public is not None
        total_PC = torch.zeros(())
        for name, models in received.items():
            net = server.task.model(name)
            for _, w in models:
                net.load_state_dict(w)
                total_PC = total_PC + server.outputs(net, server.task.public).double()
        return (total_PC / sum(map(len, received.values()))).float()  # Eq. C

    def distilled(self, server: Server[Any], name: str, mean: Weights, teacher_PC: Tensor) -> Weights:
        """Return the average model of an architecture, after training it towards the ensemble's predictions."""
        assert server.task.public is not None
        net = server.task.model(name)
        net.load_state_dict(mean)
        local = LocalTraining(optimizer="adam", lr=self.distill_lr, batch_size=self.distill_batch)
        server.fit(net, self.loss, teacher_PC, data=server.task.public, epochs=self.distill_epochs, local=local)
        return weights(net)

    def loss(self, net: Any, batch: Batch, teacher_PC: Tensor) -> Tensor:
        """KL(softmax(ensemble) || softmax(net))."""
        return batch.mean(kl(net(batch.x), teacher_PC[batch.index]))  # Eq. D
