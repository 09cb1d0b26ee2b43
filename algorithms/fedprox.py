"""FedProx: FedAvg with a proximal term, which keeps clients' models near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.
https://arxiv.org/abs/1812.06127
Participants start from the server's model and train it on their own data. Their loss has an additional term: half of mu
times the squared distance to the model that they received. They send the trained model back. The server replaces its
model with their mean, weighted by the number of training samples.

Shapes: B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from raysim.core import Algorithm, Batch, Client, ClientId, Model, NonNegative, Server, UpdateOf, Weights, weights
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FedProx(Algorithm[Model, Model, Weights]):
    """Average whole models of one architecture, each trained with a pull towards the server's model."""

    paper: ClassVar[str] = "Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127"
    averages = "uploads"
    stale_uploads = True
    one_architecture: ClassVar[bool] = True

    mu: NonNegative = 0.1
    """Weight of the proximal term, which must be tuned; 0 gives FedAvg. The paper uses 0.001 to 1."""
    avg_bn_buffers: bool = True
    """Also average BatchNorm's running mean and variance. `false`: clients keep their own, as in libraries that average
    only parameters."""

    def server_start(self, server: Server[Weights], registrations: Mapping[ClientId, Any]) -> Weights:
        # All clients have this architecture, and start from these weights.
        return self._shared(server.task.model(server.task.architectures[0]))

    def server_send(self, server: Server[Weights], to: ClientId) -> Model:
        return Model(server.state)

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.load_state_dict(down.w, strict=self.avg_bn_buffers)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(self.loss, down.w if down is not None and self.mu else None)
        return Model(self._shared(client.net))

    def loss(self, net: Any, batch: Batch, given: Weights | None) -> Tensor:
        """CE + mu/2 * squared distance of the parameters to the received parameters, which are constants."""
        loss = cross_entropy(net, batch, None)
        if given is None:
            return loss
        # Eq. A
        away = sum((weight - given[name]).square().sum() for name, weight in net.named_parameters())
        return loss + self.mu / 2 * away

    def server_update(self, server: Server[Weights], ups: Mapping[ClientId, Model]) -> None:
        # Eq. B
        server.state = server.mean({k: up.w for k, up in ups.items()})

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)

    def _shared(self, net: Any) -> Weights:
        parameters = {name for name, _ in net.named_parameters()}
        return {name: w for name, w in weights(net).items() if self.avg_bn_buffers or name in parameters}
