"""FedBABU: only the extractor is trained and averaged, under a fixed random header; each client fine-tunes the result.

Oh, Kim, Yun. FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.
https://arxiv.org/abs/2106.06042
All clients have the same random header (the head). A participant replaces its extractor (the body) with the server's,
trains it under that header and sends it back. The server averages extractors, weighted by the number of training
samples. For its own predictions, the client then fine-tunes the whole network, which is never sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from raysim.core import (
    Algorithm,
    Client,
    ClientId,
    Extractor,
    NonNegativeInt,
    Server,
    Task,
    UpdateOf,
    extractor_weights,
    weights,
)
from raysim.core.ops import cross_entropy

FIXED = "fixed_"
"""Beginning of the names of buffers with the fixed header of the federated training, beside the fine-tuned header."""


@dataclass(frozen=True)
class FedBABU(Algorithm[Extractor, Extractor, Extractor]):
    """Average the extractors of one architecture, trained under one fixed random header; each client fine-tunes."""

    paper: ClassVar[str] = "Oh et al., ICLR 2022, https://arxiv.org/abs/2106.06042"
    averages = "uploads"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"agg": "uniform"}}
    one_architecture: ClassVar[bool] = True

    fine_tune_epochs: NonNegativeInt = 5
    """Passes over the local data for fine-tuning a participant's network, after it has sent the extractor; 0: it
    predicts with the fixed header."""
    fine_tune: Literal["all", "header"] = "all"
    """What is fine-tuned: the whole network, or the header only."""
    agg: Literal["weighted", "uniform"] = "weighted"
    """Weights of extractors in the mean: by sample counts, or all equal (the released code)."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        # All clients get the same fixed header, even if their networks start from different weights.
        fixed = weights(task.model(task.architectures[0]).header)
        model.header.load_state_dict(fixed)
        for name, weight in fixed.items():
            model.header.register_buffer(FIXED + name, weight)
        return model

    def server_start(self, server: Server[Extractor], registrations: Mapping[ClientId, Any]) -> Extractor:
        # All clients have this architecture, and start from these weights.
        return Extractor(extractor_weights(server.task.model(server.task.architectures[0])))

    def server_send(self, server: Server[Extractor], to: ClientId) -> Extractor:
        return server.state

    def client_receive(self, client: Client, down: Extractor) -> None:
        own = client.net.state_dict()
        fixed = {f"header.{name}": own[f"header.{FIXED}{name}"] for name in ("weight", "bias")}
        client.net.load_state_dict({**own, **fixed, **down.w})

    def client_update(self, client: Client, down: Extractor | None) -> Extractor:
        header = {name for name, _ in client.net.named_parameters() if name.startswith("header.")}
        extractor = {name for name, _ in client.net.named_parameters()} - header
        client.fit(cross_entropy, only=extractor)  # Eq. A
        up = Extractor(extractor_weights(client.net))
        if self.fine_tune_epochs:
            only = header if self.fine_tune == "header" else None
            client.fit(cross_entropy, epochs=self.fine_tune_epochs, only=only)  # Eq. C
        return up

    def server_update(self, server: Server[Extractor], ups: Mapping[ClientId, Extractor]) -> None:
        weighted = self.agg == "weighted"
        # Eq. B
        server.state = Extractor(server.mean({k: up.w for k, up in ups.items()}, weighted))

    def exposed(self, client: Client, up: Extractor) -> UpdateOf:
        return UpdateOf(client.net, up.w)
