"""FedALA: a client mixes the server's model into its own model. It learns a weight for each value.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
AAAI 2023. https://arxiv.org/abs/2212.01197
A participant takes the lower layers from the server's model. In the upper layers, each value becomes a mixture of its
own and the server's; the weight of every value is first trained on a part of the local data, while the models are
fixed. The participant then trains the mixed model and sends it back. The server averages models, weighted by the number
of training samples.

Shapes: B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
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
from raysim.core.fields import Range
from raysim.core.ops import cross_entropy
from raysim.core.torch_workarounds import tensors_replaced


class Mixing(nn.Module):
    """A client's model, and the weights by which the values of the server's upper layers are mixed into it."""

    def __init__(self, model: Any, upper: int) -> None:
        super().__init__()
        self.model = model
        self.names = [name for name, _ in model.named_parameters()][-upper:]
        self.share = nn.ParameterList(torch.ones_like(model.get_parameter(name)) for name in self.names)
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the client's model."""
        return self.model(x)

    def mixed(self, received: Weights) -> Weights:
        """Return the upper layers of the model, mixed with the received ones."""
        # Eq. A
        return {
            name: self.model.get_parameter(name).detach().lerp(received[name], share)
            for name, share in zip(self.names, self.share, strict=True)
        }


@dataclass(frozen=True)
class FedALA(Algorithm[Model, Model, Weights]):
    """Average models of one architecture. Each client learns how much of each upper value to take from the server."""

    paper: ClassVar[str] = "Zhang et al., AAAI 2023, https://arxiv.org/abs/2212.01197"
    averages = "uploads"
    stale_uploads = True
    one_architecture: ClassVar[bool] = True

    upper: Count = 2
    """Number of parameter tensors to mix, counted from the output; 2: weight and bias of the header (the released
    script)."""
    share_lr: NonNegative = 1.0
    """Learning rate of the mixing weights (the paper's eta); 0: clients load the server's model, as in FedAvg."""
    data: Annotated[float, Range(gt=0, le=1)] = 0.8
    """Share of the client's training samples, drawn anew in each round, on which the mixing weights are trained (the
    paper's s)."""
    first_epochs: Count = 11
    """Passes over these samples when a client trains its mixing weights for the first time. Later rounds have one
    pass."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Mixing(model, self.upper)

    def server_start(self, server: Server[Weights], registrations: Mapping[ClientId, Any]) -> Weights:
        # All clients have this architecture, and start from these weights.
        return weights(server.task.model(server.task.architectures[0]))

    def server_send(self, server: Server[Weights], to: ClientId) -> Model:
        return Model(server.state)

    def client_receive(self, client: Client, down: Model) -> None:
        net = client.net
        own = {name: net.model.get_parameter(name).detach().clone() for name in net.names}
        received = {name: down.w[name] for name in net.names}
        net.model.load_state_dict({**down.w, **own})
        if any(not own[name].equal(received[name]) for name in net.names):
            self.train_shares(client, received)
        # Training the weights has changed BatchNorm's statistics.
        net.model.load_state_dict({**down.w, **net.mixed(received)})

    def train_shares(self, client: Client, received: Weights) -> None:
        """Train the mixing weights by plain SGD, with both models fixed."""
        net, local, n = client.net, client.local, len(client.data)
        part = torch.randperm(n, generator=client.rng, device="cpu")[: max(1, int(self.data * n))]
        names = [name for name, _ in net.named_parameters() if name.startswith("share.")]
        client.local = replace(local, optimizer="sgd", lr=self.share_lr, momentum=0.0, nesterov=False, weight_decay=0.0)
        client.fit(
            mixture_loss,
            received,
            epochs=1 if net.begun else self.first_epochs,
            data=client.data.subset(part),
            bounds=dict.fromkeys(names, (0.0, 1.0)),
            only=names,
        )
        client.local = local
        net.begun.fill_(True)
        client.log("share", float(torch.cat([share.detach().flatten() for share in net.share]).mean()))

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(model_loss, only=[name for name, _ in client.net.named_parameters() if name.startswith("model.")])
        return Model(weights(client.net.model))

    def server_update(self, server: Server[Weights], ups: Mapping[ClientId, Model]) -> None:
        # Eq. D
        server.state = server.mean({k: up.w for k, up in ups.items()})

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        # The server does not know the mixed upper layers with which training began.
        return UpdateOf(client.net.model, {name: w for name, w in up.w.items() if name not in client.net.names})


def mixture_loss(net: Any, batch: Batch, received: Weights) -> Tensor:
    """The CE of the mixture; only the mixing weights get a gradient."""
    with tensors_replaced(net.model, net.mixed(received)):
        return cross_entropy(net.model, batch, None)  # Eq. B


def model_loss(net: Any, batch: Batch, given: Any) -> Tensor:
    """The CE of the client's model."""
    return cross_entropy(net.model, batch, None)  # Eq. C
