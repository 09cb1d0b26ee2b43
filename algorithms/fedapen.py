"""FedAPEN: a private and a small shared model learn from each other; each client learns their weights in an ensemble.

Qin, Deng, Zhao, Yan. KDD 2023. https://doi.org/10.1145/3580305.3599344
Participants replace their shared model with the server's, learn the weight of their private model in the ensemble on
samples set aside for it, train both models (on labels, on each other, and as an ensemble), and send back the shared
model. The server averages the shared models uniformly. Clients predict with the ensemble.

Shapes: N samples, B batch, C classes; M = 2 models, the private one first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Count, Model, Positive, Server, Task, UpdateOf, weights
from raysim.core.data import Samples
from raysim.core.fields import Range
from raysim.core.ops import cross_entropy, kl


class Ensemble(nn.Module):
    """A client's private and shared model, and the weight of the private model."""

    def __init__(self, private: Any, shared: Any) -> None:
        super().__init__()
        self.private = private
        self.shared = shared
        self.lambda_: Tensor
        self.register_buffer("lambda_", torch.tensor(0.5))  # weight of the private model, in [0, 1]
        self.trained: Tensor
        self.register_buffer("trained", torch.tensor(False))  # whether this client has ever taken part

    def both(self, x: Tensor) -> Tensor:
        """Return the logits of both models, [B, M, C]: first the private one, then the shared one."""
        return torch.stack([self.private(x), self.shared(x)], 1)

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, C] of the ensemble."""
        return ensemble(self.lambda_, self.private(x), self.shared(x))


def ensemble(lambda_: Tensor, private_BC: Tensor, shared_BC: Tensor) -> Tensor:
    """Return the ensemble's logits [B, C], lambda z + (1 - lambda) z_s."""
    # Eq. A
    return lambda_ * private_BC + (1 - lambda_) * shared_BC


@dataclass(frozen=True)
class FedAPEN(Algorithm[Model, Model, Model]):
    """Mutual learning of a private and a shared model, which form an ensemble with a learned weight."""

    paper: ClassVar[str] = "Qin et al., KDD 2023, https://doi.org/10.1145/3580305.3599344"
    averages = "uploads"
    stale_uploads = True

    small: str | None = None
    """Architecture of the shared model; `null`: the clients' architecture with the fewest parameters."""
    adaptability: Annotated[float, Range(ge=0, lt=1)] = 0.05
    """Share of a client's training data, rounded down, that is only used to train the weight of its private model: at
    0.05, every 20th sample in data order. If that is no sample, the weight stays at 0.5."""
    lambda_epochs: Count = 10
    """Passes over that share in every round."""
    lambda_lr: Positive = 0.001
    """Learning rate of the SGD on the weight."""

    def check(self, task: Task) -> None:
        task.small_model(self.small)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Ensemble(model, task.small_model(self.small))

    def server_start(self, server: Server[Model], registrations: Mapping[ClientId, Any]) -> Model:
        return Model(weights(server.task.small_model(self.small)))

    def server_send(self, server: Server[Model], to: ClientId) -> Model:
        return server.state

    def client_receive(self, client: Client, down: Model) -> None:
        net: Ensemble = client.net
        net.shared.load_state_dict(down.w)
        if bool(net.trained):  # before the private model is trained, its weight would be meaningless
            self.learn_lambda(client, self.split(client.data)[0])

    def client_update(self, client: Client, down: Model | None) -> Model:
        net: Ensemble = client.net
        client.log("lambda", float(net.lambda_))
        client.fit(mutual_loss, data=self.split(client.data)[1])
        net.trained.fill_(True)
        return Model(weights(net.shared))

    def server_update(self, server: Server[Model], ups: Mapping[ClientId, Model]) -> None:
        server.state = Model(server.mean({k: up.w for k, up in ups.items()}, weighted=False))  # Eq. E

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net.shared, up.w)

    def split(self, data: Samples) -> tuple[Samples, Samples]:
        """Split data into (adaptability set, rest), both in data order. The rest always has a sample."""
        position_N = torch.arange(len(data) + 1, dtype=torch.float64)
        # The size of the adaptability set for the first n samples. 1e-9 prevents that 0.29 * 100 is rounded down to 28.
        aside_N = (self.adaptability * position_N + 1e-9).floor()
        picked_N = aside_N.diff() > 0
        return data.subset(picked_N.nonzero().flatten()), data.subset((~picked_N).nonzero().flatten())

    def learn_lambda(self, client: Client, held: Samples) -> None:
        """Train lambda by SGD on CE(lambda z + (1 - lambda) z_s, y), and clip it to [0, 1] after every step.

        Both models are frozen, so their logits are computed once. The gradient is the mean over samples of
        (softmax(e) - onehot(y)) . (z - z_s).
        """
        if not len(held):
            return
        lambda_ = client.net.lambda_
        both_NMC = client.outputs(client.net.both, held)
        onehot_NC = nn.functional.one_hot(held.y, both_NMC.shape[2])
        size = client.local.batch_size
        for _ in range(self.lambda_epochs):
            for both_BMC, onehot_BC in zip(both_NMC.split(size), onehot_NC.split(size), strict=True):
                private_BC, shared_BC = both_BMC.unbind(1)
                error_BC = ensemble(lambda_, private_BC, shared_BC).softmax(1) - onehot_BC
                slope = (error_BC * (private_BC - shared_BC)).sum(1).mean()
                # Eq. D
                lambda_.sub_(self.lambda_lr * slope).clamp_(0, 1)


def mutual_loss(net: Any, batch: Batch, given: Any) -> Tensor:
    """The private model's loss plus the shared model's, a scalar.

    The private model's loss is CE(z, y) + KL(softmax(z_s) || softmax(z)) + CE(lambda z + (1 - lambda) z_s, y), with z_s
    as a constant. The shared model's is the same with the models exchanged, and z as a constant. So the gradient of the
    sum is, for each model, the gradient of its own loss.
    """
    private_BC, shared_BC = net.private(batch.x), net.shared(batch.x)

    def ce(logits_BC: Tensor) -> Tensor:
        return cross_entropy(lambda _: logits_BC, batch, given)

    # Eq. B, and Eq. C for the shared model
    private = ce(private_BC) + batch.mean(kl(private_BC, shared_BC))
    private = private + ce(ensemble(net.lambda_, private_BC, shared_BC.detach()))
    shared = ce(shared_BC) + batch.mean(kl(shared_BC, private_BC))
    shared = shared + ce(ensemble(net.lambda_, private_BC.detach(), shared_BC))
    return private + shared
