"""FedDBE: FedAvg in which each client stores the bias of its representations in its own vector.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating Domain Bias for Federated Learning in Representation Space.
NeurIPS 2023. https://arxiv.org/abs/2311.14975
After the first round, the server knows the mean representation over all participants, which stays fixed. From then on,
a participant trains the server's model with two changes. A vector of its own (the personalized representation bias
memory) is added to each representation before the header. A penalty holds the mean of the representations near the
global mean. It sends the model back, but keeps its vector; the server averages models, weighted by the number of
training samples.

Shapes: B batch, C classes, D representation width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    NonNegative,
    Server,
    Task,
    UpdateOf,
    Weights,
    message,
    weights,
)
from raysim.core.fields import Range
from raysim.core.ops import cross_entropy


@message
class Shared:
    """A model and a mean representation: the global mean or, before there is one, the client's own mean."""

    w: Weights
    mean_D: Tensor  # zeros if there is no mean yet


class Biased(nn.Module):
    """A client's model, and the vector that is added to its representations."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model = model
        self.bias_D = nn.Parameter(torch.zeros(width))
        self.running_D: Tensor  # mean of the representations in the batches of this round so far
        self.register_buffer("running_D", torch.zeros(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the biased representations."""
        # Eq. A
        return self.model.header(self.model.features(x) + self.bias_D)


@dataclass(frozen=True)
class FedDBE(Algorithm[Shared, Shared, Shared]):
    """Average models of one architecture. Clients keep biases of representations; a penalty keeps their means equal."""

    paper: ClassVar[str] = "Zhang et al., NeurIPS 2023, https://arxiv.org/abs/2311.14975"
    averages = "uploads"
    stale_uploads = True
    one_architecture: ClassVar[bool] = True

    kappa: NonNegative = 50.0
    """Weight of the penalty on the distance between the client's mean representation and the global one; 0: no
    penalty."""
    mu: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of the newest batch in the running mean of representations (the paper's momentum); 1: only this batch."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Biased(model, task.feature_dim)

    def server_start(self, server: Server[Shared], registrations: Mapping[ClientId, Any]) -> Shared:
        # All clients have this architecture, and start from these weights.
        model = server.task.model(server.task.architectures[0])
        return Shared(weights(model), torch.zeros(server.task.feature_dim))

    def server_send(self, server: Server[Shared], to: ClientId) -> Shared:
        return server.state

    def client_receive(self, client: Client, down: Shared) -> None:
        client.net.model.load_state_dict(down.w)

    def client_update(self, client: Client, down: Shared | None) -> Shared:
        net = client.net
        if down is None or not down.mean_D.any():
            client.fit(plain_loss, only=[name for name, _ in net.named_parameters() if name != "bias_D"])
            own_D = client.outputs(net.model.features).double().mean(0).float()  # Eq. B
            return Shared(weights(net.model), own_D)
        net.running_D.zero_()
        client.fit(self.loss, down.mean_D)
        return Shared(weights(net.model), down.mean_D)

    def loss(self, net: Any, batch: Batch, mean_D: Tensor) -> Tensor:
        """CE + kappa / 2 * the mean square, over dimensions, of the running mean minus the global mean.

        Gradients reach the running mean only through the newest batch.
        """
        feature_BD = net.model.features(batch.x)
        weight_B = torch.ones_like(feature_BD[:, 0]) if batch.weight is None else batch.weight
        newest_D = weight_B @ feature_BD / weight_B.sum()
        # Eq. C
        running_D = (1 - self.mu) * net.running_D + self.mu * newest_D
        net.running_D.copy_(running_D.detach())
        loss = cross_entropy(lambda _: net.model.header(feature_BD + net.bias_D), batch, None)
        # Eq. D
        return loss + self.kappa / 2 * (running_D - mean_D).square().mean()

    def server_update(self, server: Server[Shared], ups: Mapping[ClientId, Shared]) -> None:
        # Eq. E
        mean = server.mean({k: {**up.w, "mean": up.mean_D} for k, up in ups.items()})
        mean_D, known = mean.pop("mean"), server.state.mean_D
        server.state = Shared(mean, known if known.any() else mean_D)

    def exposed(self, client: Client, up: Shared) -> UpdateOf:
        return UpdateOf(client.net.model, up.w)


def plain_loss(net: Any, batch: Batch, given: Any) -> Tensor:
    """The model's CE without the added vector."""
    return cross_entropy(net.model, batch, None)
