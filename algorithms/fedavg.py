"""FedAvg: all clients train the same model, and the server averages it.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. AISTATS 2017. https://arxiv.org/abs/1602.05629
Participants start from the server's model, train it on their own data and send it back whole. The server
replaces its model with their mean, weighted by the number of training samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from raysim.core import Algorithm, Client, ClientId, Model, Server, UpdateOf, Weights, weights
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FedAvg(Algorithm[Model, Model, Weights]):
    """Average whole models of one architecture, weighted by sample counts."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629"
    averages = "uploads"
    stale_uploads = True
    one_architecture: ClassVar[bool] = True

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
        client.fit(cross_entropy)  # Eq. A
        return Model(self._shared(client.net))

    def server_update(self, server: Server[Weights], ups: Mapping[ClientId, Model]) -> None:
        # Eq. B
        server.state = server.mean({k: up.w for k, up in ups.items()})

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)

    def _shared(self, net: Any) -> Weights:
        parameters = {name for name, _ in net.named_parameters()}
        return {name: w for name, w in weights(net).items() if self.avg_bn_buffers or name in parameters}
