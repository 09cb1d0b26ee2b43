"""FedPer: the extractor is averaged, each client keeps its own header.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers, 2019.
https://arxiv.org/abs/1912.00818
Participants replace their extractor (the base layers) with the server's, train it together with their own header (the
personalization layer) and send the extractor back. The server averages extractors, weighted by the number of training
samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from raysim.core import Algorithm, Client, ClientId, Extractor, Server, UpdateOf, extractor_weights
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FedPer(Algorithm[Extractor, Extractor, Extractor]):
    """Average the extractors of one architecture; each client keeps its own header."""

    paper: ClassVar[str] = "Arivazhagan et al., 2019, https://arxiv.org/abs/1912.00818"
    averages = "uploads"
    stale_uploads = True
    one_architecture: ClassVar[bool] = True

    def server_start(self, server: Server[Extractor], registrations: Mapping[ClientId, Any]) -> Extractor:
        # All clients have this architecture, and start from these weights.
        return Extractor(extractor_weights(server.task.model(server.task.architectures[0])))

    def server_send(self, server: Server[Extractor], to: ClientId) -> Extractor:
        return server.state

    def client_receive(self, client: Client, down: Extractor) -> None:
        client.net.load_state_dict({**client.net.state_dict(), **down.w})  # Eq. A

    def client_update(self, client: Client, down: Extractor | None) -> Extractor:
        client.fit(cross_entropy)  # Eq. B
        return Extractor(extractor_weights(client.net))

    def server_update(self, server: Server[Extractor], ups: Mapping[ClientId, Extractor]) -> None:
        # Eq. C
        server.state = Extractor(server.mean({k: up.w for k, up in ups.items()}))

    def exposed(self, client: Client, up: Extractor) -> UpdateOf:
        return UpdateOf(client.net, up.w)
