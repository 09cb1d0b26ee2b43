"""pFedMoE: for each sample, a gate weights a client's own extractor and a small shared extractor.

Yi, Yu, Ren, Zhang, Wang, Liu, Li. pFedMoE: Data-Level Personalization with Mixture of Experts for Model-Heterogeneous
Personalized Federated Learning, 2024. https://arxiv.org/abs/2402.01350
A participant takes the server's small extractor (the global expert). Its own extractor is the local expert. A small
gating network reads the sample and gives each expert a weight, and the own header reads the weighted sum of both
representations. The participant trains all parts by one loss and sends back the small extractor; the server averages
the small extractors, weighted by the number of training samples.

Shapes: B batch, C classes, D representation width of both experts, n values of a sample, G inputs of the gate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core import Algorithm, Client, ClientId, Count, Extractor, Server, Task, UpdateOf, extractor_weights
from raysim.core.ops import cross_entropy


class Experts(nn.Module):
    """A client's own model, the small extractor, which is sent, and the gate that weights their representations."""

    def __init__(self, model: Any, small: Any, gate_inputs: int, gate_hidden: int) -> None:
        super().__init__()
        self.model = model
        self.small = small
        self.small.header = nn.Identity()  # the small model is only used as an extractor
        self.gate_inputs = gate_inputs
        self.gate = nn.Sequential(nn.Linear(gate_inputs, gate_hidden), nn.Sigmoid(), nn.Linear(gate_hidden, 2))

    @property
    def header(self) -> Any:
        """The header of the client's own model, which predicts."""
        return self.model.header

    def shares(self, x: Tensor) -> Tensor:
        """Return the weights [B, 2] of the small extractor and of the own extractor; they sum to 1."""
        value_Bn = x.flatten(1).to(self.model.header.weight.dtype)
        value_BG = F.adaptive_avg_pool1d(value_Bn[:, None], self.gate_inputs)[:, 0]
        # Eq. A
        return self.gate(value_BG).softmax(1)

    def features(self, x: Tensor) -> Tensor:
        """The mixed representation [B, D]."""
        share_B2 = self.shares(x)
        # Eq. B
        return share_B2[:, :1] * self.small.features(x) + share_B2[:, 1:] * self.model.features(x)

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the own model's header."""
        # Eq. C
        return self.header(self.features(x))


@dataclass(frozen=True)
class PFedMoE(Algorithm[Extractor, Extractor, Extractor]):
    """Mix each client's representation with that of a small shared extractor, by separate weights per sample."""

    paper: ClassVar[str] = "Yi et al., 2024, https://arxiv.org/abs/2402.01350"
    averages = "uploads"
    stale_uploads = True

    small: str | None = None
    """Architecture of the small extractor; `null`: the clients' architecture with the fewest parameters."""
    gate_inputs: Count = 256
    """Number G of input values of the gate. If a sample has another number of values, neighbouring values are averaged
    to G values. With 64 for 8 x 8 digits or 3072 for CIFAR, the gate reads each pixel, as in the paper."""
    gate_hidden: Count = 64
    """Width of the gate's hidden layer."""
    agg: Literal["weighted", "uniform"] = "weighted"
    """Weights of small extractors in the mean: by sample counts, or all equal."""

    def check(self, task: Task) -> None:
        self.small_model(task)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Experts(model, self.small_model(task), self.gate_inputs, self.gate_hidden)

    def server_start(self, server: Server[Extractor], registrations: Mapping[ClientId, Any]) -> Extractor:
        return Extractor(extractor_weights(self.small_model(server.task)))

    def server_send(self, server: Server[Extractor], to: ClientId) -> Extractor:
        return server.state

    def client_receive(self, client: Client, down: Extractor) -> None:
        client.net.small.load_state_dict(down.w)

    def client_update(self, client: Client, down: Extractor | None) -> Extractor:
        client.fit(cross_entropy)  # Eq. D
        return Extractor(extractor_weights(client.net.small))

    def server_update(self, server: Server[Extractor], ups: Mapping[ClientId, Extractor]) -> None:
        weighted = self.agg == "weighted"
        # Eq. E
        server.state = Extractor(server.mean({k: up.w for k, up in ups.items()}, weighted))

    def exposed(self, client: Client, up: Extractor) -> UpdateOf:
        return UpdateOf(client.net.small, up.w)

    def small_model(self, task: Task) -> Any:
        """Return a new small model, whose representation is as wide as those of the clients' own models."""
        return task.small_model(self.small, task.feature_dim)
