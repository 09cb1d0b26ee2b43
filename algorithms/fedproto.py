"""FedProto: clients exchange mean representations of classes (prototypes), and pull their own towards the global ones.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. AAAI 2022. https://arxiv.org/abs/2105.00243
A participant trains its whole network. An additional loss pulls each representation towards the global prototype of
its class. The participant then sends the prototype (mean representation) of each class it owns. The server averages
each class's prototypes over the clients that own the class.

Shapes: C classes, S classes one client owns, K classes whose global prototype is sent, D representation width, N
samples of one client, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, NonNegative, OutputOf, Server, Task, message
from raysim.core.ops import by_class, class_means, cross_entropy

UNKNOWN = -1e9
"""Logit of a class without a prototype: below all negative distances, but finite."""


@message
class GlobalPrototypes:
    """The known global prototypes of the receiver's classes or, with `nearest: all`, of all classes."""

    class_K: Tensor | None  # ids of the classes, int32, ascending; None only for counting the message
    prototype_KD: Tensor

    def counted(self) -> "GlobalPrototypes":
        """Count K*D numbers, where K = S or C once all are known. As in the paper's formula, class ids do not count."""
        return GlobalPrototypes(None, self.prototype_KD)

    def table(self, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return prototype_CD by class id, with zeros for unknown prototypes, and known_C (bool)."""
        assert self.class_K is not None
        return by_class(self.class_K, self.prototype_KD, num_classes)


@message
class Prototypes:
    """The prototype of each of a client's classes, by ascending class id."""

    prototype_SD: Tensor
    count_S: Tensor | None  # int32: number of training samples of each class; only with `agg: weighted`


class Nearest(nn.Module):
    """A client's own model. After it has received prototypes, it predicts the class of the nearest one."""

    def __init__(self, model: Any, num_classes: int, width: int) -> None:
        super().__init__()
        self.model = model
        self.prototype_CD: Tensor
        self.known_C: Tensor
        self.register_buffer("prototype_CD", torch.zeros(num_classes, width))
        self.register_buffer("known_C", torch.zeros(num_classes, dtype=torch.bool))

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
        # Eq. D
        near_BC = -distances(feature_BD, self.prototype_CD)
        return torch.where(self.known_C.any(), near_BC.masked_fill(~self.known_C, UNKNOWN), logits_BC)


@dataclass
class Table:
    """The server's state: the classes of each client, and the global prototypes."""

    class_S: dict[ClientId, Tensor]  # the classes of each client, in the order of the rows of its messages
    prototype_CD: Tensor
    known_C: Tensor  # bool: whether the prototype is known
    everything: GlobalPrototypes | None = None  # message with all known prototypes, for `nearest: all`


@dataclass(frozen=True)
class FedProto(Algorithm[GlobalPrototypes, Prototypes, Table]):
    """Pull representations towards the global mean representation of their class."""

    paper: ClassVar[str] = "Tan et al., AAAI 2022, https://arxiv.org/abs/2105.00243"
    averages = "uploads"
    stale_uploads = True
    state_of_samples: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"rebuild": True, "prototypes": "last_epoch"},
    }

    lambda_: NonNegative = 1.0
    """Weight of the pull towards the global prototypes; 0 omits it. The released code uses 0.1 for CIFAR-10."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights in the mean of a class, over the participants that have it: all equal (the released code), or by sample
    counts (the paper), which are then also sent."""
    rebuild: bool = False
    """Drop the prototype of a class that no participant has in a round, as the released code does."""
    inference: Literal["classifier", "nearest"] = "classifier"
    """Predict with the client's own header, or by the nearest of the global prototypes received last."""
    nearest: Literal["own", "all"] = "own"
    """The prototypes for `inference: nearest`: those of the client's own classes (the released code), or those of all
    classes (HtFLlib), which are then all sent to clients."""
    prototypes: Literal["eval_pass", "last_epoch"] = "eval_pass"
    """The representations to average and send: those of an additional pass in eval mode after training, or those of the
    training steps in the last epoch (the released code)."""

    @property
    def searches_all(self) -> bool:
        """Whether clients need prototypes of classes that they do not have."""
        return self.inference == "nearest" and self.nearest == "all"

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Nearest(model, task.num_classes, task.feature_dim) if self.inference == "nearest" else model

    def server_start(self, server: Server[Table], registrations: Mapping[ClientId, Any]) -> Table:
        num_classes, width = server.task.num_classes, server.task.feature_dim
        known_C = torch.zeros(num_classes, dtype=torch.bool)
        return Table(dict(server.classes), torch.zeros(num_classes, width), known_C)

    def server_send(self, server: Server[Table], to: ClientId) -> GlobalPrototypes | None:
        state = server.state
        if self.searches_all:
            return state.everything
        class_S = state.class_S[to]
        class_K = class_S[state.known_C[class_S]]
        return GlobalPrototypes(class_K.int(), state.prototype_CD[class_K]) if len(class_K) else None

    def client_receive(self, client: Client, down: GlobalPrototypes) -> None:
        if self.inference == "nearest":
            prototype_CD, known_C = down.table(client.task.num_classes)
            client.net.prototype_CD.copy_(prototype_CD)
            client.net.known_C.copy_(known_C)

    def client_update(self, client: Client, down: GlobalPrototypes | None) -> Prototypes:
        given = None if down is None or not self.lambda_ else down.table(client.task.num_classes)
        row_ND = client.complete(client.fit(self.loss, given), client.net.features)
        _, prototype_SD, count_S = class_means(row_ND, client.data.y)  # Eq. A
        return Prototypes(prototype_SD, count_S.int() if self.agg == "weighted" else None)

    def loss(self, net: Any, batch: Batch, given: tuple[Tensor, Tensor] | None) -> Tensor | tuple[Tensor, Tensor]:
        """CE + lambda * mean square of f - prototype, over batch and dimensions; with `last_epoch`, also features f.

        given: prototype_CD, and known_C (bool). A sample of a class without a prototype adds 0 to the second term; the
        divisor is still the whole batch.
        """
        feature_BD = net.features(batch.x)
        total = cross_entropy(lambda _: net.header(feature_BD), batch, None)
        if given is not None:
            prototype_CD, known_C = given
            pull_B = (feature_BD - prototype_CD[batch.y]).square().mean(1)
            # Eq. C
            total = total + self.lambda_ * batch.mean(known_C[batch.y] * pull_B)
        return (total, feature_BD) if self.prototypes == "last_epoch" else total

    def server_update(self, server: Server[Table], ups: Mapping[ClientId, Prototypes]) -> None:
        state = server.state
        counts = {k: up.count_S for k, up in ups.items() if up.count_S is not None}
        # Eq. B
        mean_CD, seen_C = server.class_mean({k: up.prototype_SD for k, up in ups.items()}, counts or None)
        if self.rebuild:
            state.prototype_CD.zero_()
            state.known_C.zero_()
        state.prototype_CD[seen_C] = mean_CD[seen_C]
        state.known_C |= seen_C
        if self.searches_all:
            state.everything = GlobalPrototypes(state.known_C.nonzero()[:, 0].int(), state.prototype_CD[state.known_C])
        server.log("known_classes", float(state.known_C.sum()))

    def exposed(self, client: Client, up: Prototypes) -> OutputOf:
        return OutputOf(client.net.features, up.prototype_SD)


def distances(feature_BD: Tensor, prototype_CD: Tensor) -> Tensor:
    """Return Euclidean distances [B, C], from squares that are clamped, because rounding may make them negative."""
    norm_B1, norm_C = feature_BD.square().sum(1, keepdim=True), prototype_CD.square().sum(1)
    return (norm_B1 - 2 * feature_BD @ prototype_CD.T + norm_C).clamp_min(1e-12).sqrt()
