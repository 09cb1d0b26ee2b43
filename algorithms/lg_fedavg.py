"""LG-FedAvg: clients keep their extractors, and the header is averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. 2020. https://arxiv.org/abs/2001.01523
Participants replace their header with the server's, train everything, and send the header back. The server averages
headers, by default weighted by the number of training samples, and without regard to classes.

Shapes: C classes, D representation width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from raysim.core import Algorithm, Client, ClientId, Header, Server, UpdateOf, weights
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class LGFedAvg(Algorithm[Header, Header, Header]):
    """Average the linear headers; each client keeps its own feature extractor."""

    paper: ClassVar[str] = "Liang et al., 2020, https://arxiv.org/abs/2001.01523"
    averages = "uploads"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"agg": "uniform"}}

    agg: Literal["weighted", "uniform"] = "weighted"
    """Weights of headers in the mean: by sample counts (the paper), or all equal (the released code)."""

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Header:
        return Header(weights(server.task.new_header()))

    def server_send(self, server: Server[Header], to: ClientId) -> Header:
        return server.state

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)  # Eq. A

    def client_update(self, client: Client, down: Header | None) -> Header:
        client.fit(cross_entropy)
        return Header(weights(client.net.header))

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        weighted = self.agg == "weighted"
        # Eq. B
        server.state = Header(server.mean({k: up.w for k, up in ups.items()}, weighted))
        server.log("header_norm", float(torch.linalg.vector_norm(server.state.w["weight"])))

    def exposed(self, client: Client, up: Header) -> UpdateOf:
        return UpdateOf(client.net.header, up.w)
