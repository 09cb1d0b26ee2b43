"""APFL: each client predicts with a mixture of a personal and a global model, and can learn how to mix them.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning, 2020. https://arxiv.org/abs/2003.13461
A participant takes the server's global model and, in every step, moves it by its own loss, moves the personal model by
the loss of the mixture, and moves the weight alpha of the personal model by the same loss. It sends the global model
back. The server averages global models, by default with equal weights.

Shapes: B batch, C classes.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Fraction, Model, Server, Task, UpdateOf, Weights, weights
from raysim.core.ops import cross_entropy
from raysim.core.torch_workarounds import tensors_replaced


class Mixture(nn.Module):
    """A client's personal model, its copy of the global model, and alpha, the weight of the personal model."""

    def __init__(self, model: Any, alpha: float, adaptive: bool, of_parameters: bool) -> None:
        super().__init__()
        self.personal = model
        self.shared = copy.deepcopy(model)
        self.alpha = nn.Parameter(torch.tensor([alpha]), requires_grad=adaptive)
        self.of_parameters = of_parameters

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the mixture."""
        return self.mixed(x, None if self.of_parameters else self.shared(x))

    def mixed(self, x: Tensor, shared_BC: Tensor | None) -> Tensor:
        """Return the logits of the mixture, and the logits of the global model if logits are mixed.

        Gradients reach the personal model and alpha, not the global model.
        """
        if shared_BC is not None:
            # Eq. D
            return self.alpha * self.personal(x) + (1 - self.alpha) * shared_BC.detach()
        pairs = zip(self.personal.named_parameters(), self.shared.parameters(), strict=True)
        # Eq. A
        parameters = {name: self.alpha * v + (1 - self.alpha) * w.detach() for (name, v), w in pairs}
        with tensors_replaced(self.personal, parameters):
            return self.personal(x)


@dataclass(frozen=True)
class APFL(Algorithm[Model, Model, Weights]):
    """Predict with a mixture of a personal and a global model of one architecture; clients can learn how to mix."""

    paper: ClassVar[str] = "Deng et al., 2020, https://arxiv.org/abs/2003.13461"
    averages = "uploads"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"mix": "predictions", "adaptive": False}}
    one_architecture: ClassVar[bool] = True

    alpha: Fraction = 0.5
    """Weight of the personal model in the mixture, in a client's first round. With 1 and `adaptive: false`, the client
    trains alone."""
    adaptive: bool = True
    """Train alpha by the loss of the mixture, with the optimizer of the models, within [0, 1]; `false`: alpha is
    constant."""
    mix: Literal["parameters", "predictions"] = "parameters"
    """What is mixed: parameters (the paper's algorithm), or logits (the released code)."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of global models in the mean: all equal (the paper and the released code), or by sample counts."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Mixture(model, self.alpha, self.adaptive, self.mix == "parameters")

    def server_start(self, server: Server[Weights], registrations: Mapping[ClientId, Any]) -> Weights:
        # All clients have this architecture, and start from these weights.
        return weights(server.task.model(server.task.architectures[0]))

    def server_send(self, server: Server[Weights], to: ClientId) -> Model:
        return Model(server.state)

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.shared.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(joint_loss, bounds={"alpha": (0.0, 1.0)})
        client.log("alpha", client.net.alpha.item())
        return Model(weights(client.net.shared))

    def server_update(self, server: Server[Weights], ups: Mapping[ClientId, Model]) -> None:
        weighted = self.agg == "weighted"
        # Eq. E
        server.state = server.mean({k: up.w for k, up in ups.items()}, weighted)

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net.shared, up.w)


def joint_loss(net: Any, batch: Batch, given: Any) -> Tensor:
    """The global model's CE plus the mixture's CE. Each part of the network gets the gradient of one of them only."""
    shared_BC = net.shared(batch.x)
    mixed_BC = net.mixed(batch.x, None if net.of_parameters else shared_BC)
    # Eq. B, and Eq. C for the personal model and alpha
    return cross_entropy(lambda _: shared_BC, batch, None) + cross_entropy(lambda _: mixed_BC, batch, None)
