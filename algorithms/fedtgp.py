"""FedTGP: FedProto with global prototypes from a network, which the server trains to separate the classes.

Zhang, Liu, Hua, Cao. AAAI 2024. https://arxiv.org/abs/2401.03230
A participant trains its whole network. An additional loss pulls each representation towards the global prototype of
its class. The participant then sends the mean representation of each class it owns. The server trains a network that
maps each class to a prototype, which is close to the clients' means of that class. A margin, which grows with the
distances between the classes' means, separates it from the means of the other classes.

Shapes: C classes, S classes one client owns, K classes sent in a round, P prototypes sent in a round, D
representation width, N samples of one client, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    NonNegative,
    OutputOf,
    Positive,
    Server,
    Task,
    message,
)
from raysim.core.ops import class_means, cross_entropy


class PrototypeNetwork(nn.Module):
    """TGP(c) = W2 ReLU(W1 emb(c) + b1) + b2, with C*D + 2*(D^2 + D) parameters."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.embedding_CD = nn.Parameter(torch.randn(num_classes, width))
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self) -> Tensor:
        """Return the prototypes of all classes, [C, D]."""
        # Eq. A
        return self.out(self.hidden(self.embedding_CD).relu())


@message
class GlobalPrototypes:
    """The prototype of every class, from the server's network."""

    prototype_CD: Tensor
    known_C: Tensor | None  # bool: whether a client has sent the class; None only for counting the message

    def counted(self) -> "GlobalPrototypes":
        """Count C*D numbers. As in the paper's formula, `known_C` does not count."""
        return GlobalPrototypes(self.prototype_CD, None)


@message
class Prototypes:
    """The mean representation of each of a client's classes, by ascending class id."""

    prototype_SD: Tensor


class Nearest(nn.Module):
    """A client's own model. After it has received prototypes, it predicts the class of the nearest one."""

    def __init__(self, model: Any, num_classes: int, width: int) -> None:
        super().__init__()
        self.model = model
        self.prototype_CD: Tensor
        self.received: Tensor
        self.register_buffer("prototype_CD", torch.zeros(num_classes, width))
        self.register_buffer("received", torch.zeros((), dtype=torch.bool))

    @property
    def header(self) -> Any:
        """The model's own header, which is trained, and which predicts until prototypes are received."""
        return self.model.header

    def features(self, x: Tensor) -> Tensor:
        """Return the representation [B, D]."""
        return self.model.features(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C]; in eval mode, the negative distances to the prototypes."""
        feature_BD = self.features(x)
        logits_BC: Tensor = self.header(feature_BD)
        if self.training:
            return logits_BC
        # Eq. E
        return torch.where(self.received, -distances(feature_BD, self.prototype_CD), logits_BC)


@dataclass
class Trained:
    """The server's state: its network, the classes of each client, and the next message."""

    network: PrototypeNetwork
    class_S: dict[ClientId, Tensor]  # the classes of each client, in the order of the rows of its messages
    known_C: Tensor  # bool: whether a client has sent the class
    ready: GlobalPrototypes | None = None  # the next message; None before the first upload


@dataclass(frozen=True)
class FedTGP(Algorithm[GlobalPrototypes, Prototypes, Trained]):
    """FedProto with trainable global prototypes and an adaptive margin between them."""

    paper: ClassVar[str] = "Zhang et al., AAAI 2024, https://arxiv.org/abs/2401.03230"
    stale_uploads = True
    state_of_samples: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"inference": "nearest", "server_batch": 10},
    }

    lambda_: NonNegative = 10.0
    """Weight of the pull towards the global prototypes; 0 omits it."""
    server_epochs: Count = 100
    """The server's passes over a round's client prototypes (the paper's S). The released script uses 100; the default
    of the released code is 1000."""
    tau: NonNegative = 100.0
    """Upper limit of the margin."""
    server_lr: Positive | None = None
    """Learning rate of the server's SGD, without momentum; `null`: the clients' rate, as in the released code."""
    server_batch: Count = 64
    """Client prototypes per server step."""
    inference: Literal["classifier", "nearest"] = "classifier"
    """Predict with the client's own header, or by the nearest of the global prototypes received last, of all classes
    (the released code)."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Nearest(model, task.num_classes, task.feature_dim) if self.inference == "nearest" else model

    def server_start(self, server: Server[Trained], registrations: Mapping[ClientId, Any]) -> Trained:
        num_classes, width = server.task.num_classes, server.task.feature_dim
        network = PrototypeNetwork(num_classes, width)
        known_C = torch.zeros(num_classes, dtype=torch.bool)
        return Trained(network, dict(server.classes), known_C)

    def server_send(self, server: Server[Trained], to: ClientId) -> GlobalPrototypes | None:
        return server.state.ready

    def client_receive(self, client: Client, down: GlobalPrototypes) -> None:
        if self.inference == "nearest":
            client.net.prototype_CD.copy_(down.prototype_CD)
            client.net.received.fill_(True)

    def client_update(self, client: Client, down: GlobalPrototypes | None) -> Prototypes:
        if down is None or not self.lambda_:
            client.fit(cross_entropy)
        else:
            client.fit(self.pulled_loss, (down.prototype_CD, down.known_C))
        _, prototype_SD, _ = class_means(client.outputs(client.net.features), client.data.y)
        return Prototypes(prototype_SD)

    def pulled_loss(self, net: Any, batch: Batch, given: tuple[Tensor, Tensor]) -> Tensor:
        """CE + lambda * mean square of f - prototype, over batch and dimensions.

        given: prototype_CD, and known_C (bool). A sample of a class that no client has sent adds 0 to the second term;
        the divisor is still the whole batch.
        """
        prototype_CD, known_C = given
        feature_BD = net.features(batch.x)
        ce = cross_entropy(lambda _: net.header(feature_BD), batch, None)
        pull_B = (feature_BD - prototype_CD[batch.y]).square().mean(1)
        # Eq. B
        return ce + self.lambda_ * batch.mean(known_C[batch.y] * pull_B)

    def server_update(self, server: Server[Trained], ups: Mapping[ClientId, Prototypes]) -> None:
        state = server.state
        label_P = torch.cat([state.class_S[k] for k in ups])
        prototype_PD = torch.cat([up.prototype_SD for up in ups.values()])
        class_K, mean_KD, _ = class_means(prototype_PD, label_P)  # the mean over clients, not over samples
        margin = adaptive_margin(mean_KD, self.tau)
        loss = self._train(server, prototype_PD, label_P, margin)
        state.known_C[class_K] = True
        state.ready = GlobalPrototypes(state.network().detach(), state.known_C.clone())
        server.log("margin", margin)
        server.log("prototype_loss", loss)

    def exposed(self, client: Client, up: Prototypes) -> OutputOf:
        return OutputOf(client.net.features, up.prototype_SD)

    def _train(self, server: Server[Trained], prototype_PD: Tensor, label_P: Tensor, margin: float) -> float:
        """Train the network on the clients' prototypes; return the mean loss of the last epoch."""
        network = server.state.network
        sgd = torch.optim.SGD(network.parameters(), lr=self.server_lr or server.local.lr)
        loss_sum = torch.zeros(())
        for _ in range(self.server_epochs):
            loss_sum = torch.zeros(())
            for index in torch.randperm(len(label_P), generator=server.rng).split(self.server_batch):
                loss = margin_loss(prototype_PD[index], label_P[index], network(), margin)
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                loss_sum += loss.detach() * len(index)
        sgd.zero_grad(set_to_none=True)
        return loss_sum.item() / len(label_P)


def adaptive_margin(mean_KD: Tensor, tau: float) -> float:
    """Return the greatest distance of a class mean to its nearest other class mean, at most tau; 0 for one class."""
    if len(mean_KD) < 2:
        return 0.0
    # Distances are computed pair by pair in float64, because norms and products would be inaccurate for close means.
    gap_KK = torch.cdist(mean_KD.double(), mean_KD.double(), compute_mode="donot_use_mm_for_euclid_dist")
    # Eq. C
    return min(float(gap_KK.fill_diagonal_(torch.inf).amin(1).max()), tau)


def margin_loss(prototype_PD: Tensor, label_P: Tensor, global_CD: Tensor, margin: float) -> Tensor:
    """-log(e^-(D_y + margin) / (e^-(D_y + margin) + sum over c != y of e^-D_c)), averaged over clients' prototypes."""
    distance_PC = distances(prototype_PD, global_CD)
    own_PC = F.one_hot(label_P, len(global_CD))
    # Eq. D
    return F.cross_entropy(-(distance_PC + margin * own_PC), label_P)


def distances(value_BD: Tensor, prototype_CD: Tensor) -> Tensor:
    """Return Euclidean distances [B, C], from norms and products.

    Rounding may make the squares negative; the clamp keeps the square root and its gradient finite.
    """
    norm_B1, norm_C = value_BD.square().sum(1, keepdim=True), prototype_CD.square().sum(1)
    return (norm_B1 - 2 * value_BD @ prototype_CD.T + norm_C).clamp_min(1e-12).sqrt()
