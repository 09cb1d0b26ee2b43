"""FedRep: the extractor is averaged. Each client first trains its own header, and then the extractor.

Collins, Hassani, Mokhtari, Shakkottai. ICML 2021. https://arxiv.org/abs/2102.07078
A participant replaces its extractor (the representation) with the server's, trains its own header for some epochs while
the extractor is fixed, then the extractor while the header is fixed, and sends the extractor back. The server averages
extractors, by default with equal weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from raysim.core import Algorithm, Client, ClientId, Count, Extractor, Server, UpdateOf, extractor_weights
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FedRep(Algorithm[Extractor, Extractor, Extractor]):
    """Average the extractors of one architecture; each client fits its own header before it trains the extractor."""

    paper: ClassVar[str] = "Collins et al., ICML 2021, https://arxiv.org/abs/2102.07078"
    averages = "uploads"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"agg": "weighted"}}
    one_architecture: ClassVar[bool] = True

    header_epochs: Count = 10
    """Passes over the local data for the header, before `training.epochs` passes for the extractor."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of extractors in the mean: all equal (the paper), or by sample counts (the released code)."""

    def server_start(self, server: Server[Extractor], registrations: Mapping[ClientId, Any]) -> Extractor:
        # All clients have this architecture, and start from these weights.
        return Extractor(extractor_weights(server.task.model(server.task.architectures[0])))

    def server_send(self, server: Server[Extractor], to: ClientId) -> Extractor:
        return server.state

    def client_receive(self, client: Client, down: Extractor) -> None:
        client.net.load_state_dict({**client.net.state_dict(), **down.w})

    def client_update(self, client: Client, down: Extractor | None) -> Extractor:
        header = {name for name, _ in client.net.named_parameters() if name.startswith("header.")}
        extractor = {name for name, _ in client.net.named_parameters()} - header
        client.fit(cross_entropy, epochs=self.header_epochs, only=header)  # Eq. A
        client.fit(cross_entropy, only=extractor)  # Eq. B
        return Extractor(extractor_weights(client.net))

    def server_update(self, server: Server[Extractor], ups: Mapping[ClientId, Extractor]) -> None:
        weighted = self.agg == "weighted"
        # Eq. C
        server.state = Extractor(server.mean({k: up.w for k, up in ups.items()}, weighted))

    def exposed(self, client: Client, up: Extractor) -> UpdateOf:
        return UpdateOf(client.net, up.w)
