"""FML: every client trains its own model and a small shared model, which learn from each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. Federated Mutual Learning, 2020. https://arxiv.org/abs/2006.16765
A participant takes the server's small model (the meme), trains it together with its own on labels and on each other's
predictions, and sends it back. The server averages the memes; a client predicts with its own model.

Shapes: B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Fraction, Model, Server, Task, UpdateOf, Weights, weights
from raysim.core.ops import cross_entropy, kl


class Pair(nn.Module):
    """A client's own model, which predicts, and the small model, which is sent."""

    def __init__(self, model: Any, small: Any) -> None:
        super().__init__()
        self.model = model
        self.small = small

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C] of the client's own model."""
        return self.model(x)


@dataclass(frozen=True)
class FML(Algorithm[Model, Model, Weights]):
    """Mutual distillation between each client's own model and a small model, which is averaged."""

    paper: ClassVar[str] = "Shen et al., 2020, https://arxiv.org/abs/2006.16765"
    averages = "uploads"
    stale_uploads = True

    a: Fraction = 0.5
    """Weight of the labels in the loss of a client's own model; the small model's predictions have weight 1 - a."""
    b: Fraction = 0.5
    """Weight of the labels in the loss of the small model (the paper's beta); the own model's predictions have weight
    1 - b."""
    agg: Literal["weighted", "uniform"] = "weighted"
    """Weights of small models in the mean: by sample counts, or all equal."""
    small: str | None = None
    """Architecture of the small model; `null`: the clients' architecture with the fewest parameters."""

    def check(self, task: Task) -> None:
        task.small_model(self.small)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Pair(model, task.small_model(self.small))

    def server_start(self, server: Server[Weights], registrations: Mapping[ClientId, Any]) -> Weights:
        return weights(server.task.small_model(self.small))

    def server_send(self, server: Server[Weights], to: ClientId) -> Model:
        return Model(server.state)

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.small.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(self.loss)
        return Model(weights(client.net.small))

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        """The sum of both models' losses. Teachers get no gradient, so each model learns from its own loss only."""
        logits_BC, small_BC = net.model(batch.x), net.small(batch.x)
        labels = cross_entropy(lambda _: logits_BC, batch, None)
        small_labels = cross_entropy(lambda _: small_BC, batch, None)
        # Eq. A, and Eq. B for the meme
        own_loss = self.a * labels + (1 - self.a) * batch.mean(kl(logits_BC, small_BC))
        small_loss = self.b * small_labels + (1 - self.b) * batch.mean(kl(small_BC, logits_BC))
        return own_loss + small_loss

    def server_update(self, server: Server[Weights], ups: Mapping[ClientId, Model]) -> None:
        weighted = self.agg == "weighted"
        # Eq. C
        server.state = server.mean({k: up.w for k, up in ups.items()}, weighted)

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net.small, up.w)
