"""FedMRL: a client's own model and a small shared model are fused, and both headers read the fused representation.

Yi, Yu, Ren, Wang, Liu, Li. NeurIPS 2024. https://arxiv.org/abs/2406.00488
A participant takes the server's small model. A projection fuses the representations of the small model and of the
client's own model into one, which is as wide as that of the own model. The header of the own model reads the whole
fused representation, the header of the small model only its first numbers. The participant trains both models and the
projection, and sends back the small model; the server averages the small models.

Shapes: B batch, C classes, D representation width of own models, d representation width of the small model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Model, NonNegative, Server, Task, UpdateOf, weights
from raysim.core.fields import Range
from raysim.core.ops import cross_entropy


class Fusion(nn.Module):
    """A client's own model, the small model, which is sent, and the projection that fuses their representations."""

    def __init__(self, model: Any, small: Any) -> None:
        super().__init__()
        self.model = model
        self.small = small
        width = model.header.in_features
        self.projection = nn.Linear(small.header.in_features + width, width)

    @property
    def header(self) -> Any:
        """The header of the client's own model, which predicts."""
        return self.model.header

    def features(self, x: Tensor) -> Tensor:
        """The fused representation [B, D]."""
        # Eq. A and Eq. B
        return self.projection(torch.cat([self.small.features(x), self.model.features(x)], 1))

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the own model's header."""
        # Eq. F
        return self.header(self.features(x))


@dataclass(frozen=True)
class FedMRL(Algorithm[Model, Model, Model]):
    """Fuse the representations of a client's model and a small shared one; headers learn from parts of the result."""

    paper: ClassVar[str] = "Yi et al., NeurIPS 2024, https://arxiv.org/abs/2406.00488"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"small_width": 1.0, "agg": "one"}}

    small: str | None = None
    """Architecture of the small model; `null`: the clients' architecture with the fewest parameters."""
    small_width: Annotated[float, Range(gt=0, le=1)] = 0.2
    """Width d of the small model's representation, as a share of the width D of the clients' own representations. d is
    rounded, and at least 1. The released script for one architecture has d = 100 and D = 500 (0.2), that for several
    architectures d = D = 500 (1.0)."""
    small_weight: NonNegative = 1.0
    """Weight of the loss of the small model's header (the paper's m1)."""
    own_weight: NonNegative = 1.0
    """Weight of the loss of the own model's header (the paper's m2)."""
    agg: Literal["weighted", "uniform", "one"] = "weighted"
    """Weights of small models in the mean: by sample counts, or all equal. `one`: no mean, but the small model of a
    random participant, which is what the released code does."""

    def check(self, task: Task) -> None:
        self.small_model(task)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Fusion(model, self.small_model(task))

    def server_start(self, server: Server[Model], registrations: Mapping[ClientId, Any]) -> Model:
        return Model(weights(self.small_model(server.task)))

    def server_send(self, server: Server[Model], to: ClientId) -> Model:
        return server.state

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.small.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(self.loss)
        return Model(weights(client.net.small))

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        """The weighted sum of both headers' cross-entropy, which trains both models and the projection."""
        fused_BD = net.features(batch.x)
        first_Bd = fused_BD[:, : net.small.header.in_features]  # Eq. C
        small = cross_entropy(lambda _: net.small.header(first_Bd), batch, None)
        own = cross_entropy(lambda _: net.header(fused_BD), batch, None)
        # Eq. D
        return self.small_weight * small + self.own_weight * own

    def server_update(self, server: Server[Model], ups: Mapping[ClientId, Model]) -> None:
        if self.agg == "one":
            place = int(torch.randint(len(ups), (), generator=server.rng))
            server.state = Model({name: w.clone() for name, w in list(ups.values())[place].w.items()})
            return
        weighted = self.agg == "weighted"
        # Eq. E
        server.state = Model(server.mean({k: up.w for k, up in ups.items()}, weighted))

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net.small, up.w)

    def small_model(self, task: Task) -> Any:
        """Return a new small model, whose representation has width d."""
        return task.small_model(self.small, max(1, round(self.small_width * task.feature_dim)))
