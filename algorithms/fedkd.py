"""FedKD: a private mentor and a small shared mentee learn from each other; updates of the mentee are sent in low rank.

Wu, Wu, Lyu, Huang, Xie. Communication-efficient federated learning via knowledge distillation. Nature Communications
13, 2032 (2022). https://doi.org/10.1038/s41467-022-29763-x
A participant trains both on labels, on each other's predictions and on each other's representations. It sends the
change of the mentee, each matrix truncated to the singular values with most of its energy. The server averages the
changes and sends the mean, truncated in the same way.

Shapes: B batch, C classes, D representation width, M x N a tensor as a matrix, R its rank after truncation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Fraction, Server, Task, UpdateOf, Weights, message, weights
from raysim.core.ops import cross_entropy, kl

SMALLEST_DIFFICULTY = torch.finfo(torch.float32).eps  # avoids division by zero


# -- messages and their versions ---------------------------------------------------------------------


@message
class Factors:
    """A matrix of rank R, which is U diag(sigma) V."""

    u_MR: Tensor
    sigma_R: Tensor
    v_RN: Tensor


Tensors = dict[str, Tensor | Factors]
"""Name -> tensor, either dense or as factors. Tensors of zeros are left out."""


@message
class Update:
    """A change, which the receiver adds to its mentee."""

    tensors: Tensors

    def applied_to(self, mentee: Weights) -> Weights:
        """Return the next mentee from the receiver's mentee."""
        return {name: mentee[name] + change for name, change in restored(self.tensors, mentee).items()}


@message
class Mentee:
    """The mentee itself: its parameters and BatchNorm's running statistics."""

    tensors: Tensors

    def applied_to(self, mentee: Weights) -> Weights:
        """Return the next mentee. Only names and shapes of `mentee` are used."""
        return restored(self.tensors, mentee)


@dataclass
class Shared:
    """The server's state: the mentee, and the version of the mentee at each client."""

    mentee: Weights
    holds: dict[ClientId, int]  # client -> version of its mentee; missing if unknown
    version: int = 0  # number of updates so far
    news: Update | Mentee | None = None  # message that changes the previous version into this version

    def message_to(self, client: ClientId) -> Update | Mentee | None:
        """Return the message that gives a client the current version; None if the client has it.

        A client with the version before the current one gets the last round's message. Every other client gets the
        whole mentee. A client's version is unknown from each message to it until the server has its upload.
        """
        held = self.holds.pop(client, None)
        if held == self.version:
            return None
        fits = held == self.version - 1 or isinstance(self.news, Mentee)
        return self.news if fits else Mentee({**self.mentee})

    def advance(self, news: Update | Mentee, mentee: Weights, participants: Iterable[ClientId]) -> None:
        """Make `mentee` the next version. The participants then have the previous version."""
        self.holds.update(dict.fromkeys(participants, self.version))
        self.mentee, self.news, self.version = mentee, news, self.version + 1


# -- the method --------------------------------------------------------------------------------------


class MentorMentee(nn.Module):
    """A client's own model (mentor), which predicts, a small model (mentee), and a projection between the two."""

    def __init__(self, model: Any, small: Any, width: int) -> None:
        super().__init__()
        self.model = model
        self.small = small  # between rounds, this is the mentee as it was last received
        # from the mentee's to the mentor's representation; never sent
        self.projection = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mentor's logits [B, C]."""
        return self.model(x)


@dataclass(frozen=True)
class FedKD(Algorithm[Update | Mentee, Update | Mentee, Shared]):
    """Adaptive mutual distillation with a small model, whose updates are compressed by a truncated SVD."""

    paper: ClassVar[str] = "Wu et al., Nature Communications 2022, https://doi.org/10.1038/s41467-022-29763-x"
    averages = "values"
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"detach": False, "kl_reduction": "mean"},
        "htfllib": {"detach": False, "kl_reduction": "mean", "compress": "parameters"},
    }
    scheduled: ClassVar[bool] = True

    small: str | None = None
    """Architecture of the mentee; `null`: the clients' architecture with the fewest parameters."""
    detach: bool = True
    """Treat teachers, and the divisor of the distillation losses, as constants. `false`: both get gradients, so each
    model also learns from the loss of the other, as in the released code."""
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"
    """Reduction of the divergence, as in `torch.nn.KLDivLoss`. `batchmean`: divide by the batch size (the paper).
    `mean`: divide by the number of classes too (the released codes), which makes it 100 times smaller with 100
    classes."""
    compress: Literal["update", "parameters"] = "update"
    """Truncate the changes of the mentee, or the mentee itself (HtFLlib), to the greatest singular values."""
    energy_start: Fraction = 0.95
    """Minimum share of the squared singular values to keep, before round 1 (the paper's T_start)."""
    energy_end: Fraction = 0.98
    """Minimum share in the last round (the paper's T_end). The share grows linearly from round to round."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of clients in the mean: all equal, or by sample counts."""

    def check(self, task: Task) -> None:
        task.small_model(self.small)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return MentorMentee(model, task.small_model(self.small), task.feature_dim)

    def server_start(self, server: Server[Shared], registrations: Mapping[ClientId, Any]) -> Shared:
        # The initial mentee is never sent, because every client can build it.
        return Shared(floats(weights(server.task.small_model(self.small))), dict.fromkeys(server.num_samples, 0))

    def server_send(self, server: Server[Shared], to: ClientId) -> Update | Mentee | None:
        return server.state.message_to(to)

    def client_receive(self, client: Client, down: Update | Mentee) -> None:
        mentee = floats(client.net.small.state_dict())
        with torch.no_grad():
            for name, new in down.applied_to(mentee).items():
                mentee[name].copy_(new)

    def client_update(self, client: Client, down: Update | Mentee | None) -> Update | Mentee:
        small = client.net.small
        received = weights(small)
        client.fit(self.loss)
        trained = floats(weights(small))
        # Restore the received mentee, to which the server's next update is added. The trained values are in the upload.
        small.load_state_dict(received)
        energy = self.energy(client.t, client.task)
        if self.compress == "parameters":
            return Mentee(compressed(trained, energy))
        return Update(compressed({name: new - received[name] for name, new in trained.items()}, energy))

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        """The sum of both models' losses. With `detach`, each model gets the gradient of its own loss only."""
        feature_BD, small_BD = net.model.features(batch.x), net.small.features(batch.x)
        logits_BC, small_BC = net.model.header(feature_BD), net.small.header(small_BD)
        projected_BD = net.projection(small_BD)
        labels = cross_entropy(lambda _: logits_BC, batch, None)
        small_labels = cross_entropy(lambda _: small_BC, batch, None)
        # The terms of Eq. A and Eq. B that compare predictions with labels.
        from_labels = labels + small_labels
        # The greater the losses of both models, the less the models teach each other.
        difficulty = from_labels.clamp(min=SMALLEST_DIFFICULTY)
        if self.detach:
            difficulty = difficulty.detach()
            predictions_B = kl(logits_BC, small_BC) + kl(small_BC, logits_BC)
            # The first term trains the mentor, and the second the mentee and the projection.
            hidden_B = distance(feature_BD, projected_BD.detach()) + distance(feature_BD.detach(), projected_BD)
        else:
            predictions_B = divergence(logits_BC, small_BC) + divergence(small_BC, logits_BC)
            hidden_B = 2 * distance(feature_BD, projected_BD)
        if self.kl_reduction == "mean":
            predictions_B = predictions_B / logits_BC.shape[1]
        return from_labels + batch.mean(predictions_B + hidden_B) / difficulty

    def server_update(self, server: Server[Shared], ups: Mapping[ClientId, Update | Mentee]) -> None:
        state, energy = server.state, self.energy(server.t, server.task)
        received = {k: restored(up.tensors, state.mentee) for k, up in ups.items()}
        mean = server.mean(received, weighted=self.agg == "weighted")
        # Eq. E. The server applies the sent message, not the exact mean, so that its mentee equals that of all clients.
        sent = compressed(mean, energy)
        news = Mentee(sent) if self.compress == "parameters" else Update(sent)
        state.advance(news, news.applied_to(state.mentee), ups)

    def exposed(self, client: Client, up: Update | Mentee) -> UpdateOf:
        return UpdateOf(client.net.small, up.applied_to(floats(client.net.small.state_dict())))

    def energy(self, t: int, task: Task) -> float:
        """Return the minimum share of the squared singular values to keep in round t."""
        # Eq. D
        return self.energy_start + (self.energy_end - self.energy_start) * min(t / task.num_rounds, 1.0)


def floats(w: Weights) -> Weights:
    """Leave out BatchNorm's counters of batches, which do not affect results."""
    return {name: tensor for name, tensor in w.items() if tensor.is_floating_point()}


def divergence(logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(logits)) of each sample, [B]; both arguments get gradients."""
    log_p_BC, log_teacher_BC = F.log_softmax(logits_BC, dim=1), F.log_softmax(teacher_BC, dim=1)
    return F.kl_div(log_p_BC, log_teacher_BC, reduction="none", log_target=True).sum(1)


def distance(one_BD: Tensor, other_BD: Tensor) -> Tensor:
    """Return the mean squared difference of each sample's representations, [B]."""
    return (one_BD - other_BD).square().mean(1)


# -- the codec ---------------------------------------------------------------------------------------


def compressed(w: Weights, energy: float) -> Tensors:
    """Compress tensors for a message: as factors if these are smaller, else dense. Tensors of zeros are left out."""
    return {name: factors(tensor, energy) or tensor for name, tensor in w.items() if bool(tensor.any())}


def factors(tensor: Tensor, energy: float) -> Factors | None:
    """Factor a tensor [M, ...], seen as an M x N matrix, by truncated SVD; None if the factors are not smaller.

    The rank R is the least with sum(sigma_i^2, i <= R) >= energy * sum(sigma_i^2). Also None for a tensor with fewer
    than two dimensions, or with NaN or infinity.
    """
    # Tensors with NaN or infinity are sent unchanged, because the engine refuses them with a clearer error than LAPACK.
    if tensor.dim() < 2 or not bool(tensor.isfinite().all()):
        return None
    matrix_MN = tensor.flatten(1)
    u, sigma, v = torch.linalg.svd(matrix_MN, full_matrices=False)
    kept = sigma.double().square().cumsum(0)
    # Eq. C
    rank = 1 + int((kept < energy * kept[-1]).sum())  # at most the full rank
    if rank * (sum(matrix_MN.shape) + 1) >= matrix_MN.numel():
        return None
    return Factors(u[:, :rank].clone(), sigma[:rank].clone(), v[:rank].clone())


def restored(tensors: Tensors, like: Weights) -> Weights:
    """Return the dense tensors of a message. `like` has their names, shapes and dtypes."""
    dense: Weights = {}
    for name, template in like.items():
        part = tensors.get(name)
        if part is None:
            dense[name] = torch.zeros_like(template)
        elif isinstance(part, Factors):
            # In float64, server and clients round to the same numbers on every device.
            product_MN = (part.u_MR.double() * part.sigma_R.double()) @ part.v_RN.double()
            dense[name] = product_MN.to(template.dtype).view(template.shape)
        else:
            dense[name] = part
    return dense
