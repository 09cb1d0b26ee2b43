"""FedL2G: the server learns one vector per class that guides local training. Clients evaluate the guidance in a quiz.

Zhang, Liu, Hua, Cao, Yang. FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning, 2024.
https://arxiv.org/abs/2410.06490
A participant trains its whole network; an additional loss pulls the logits (or representation) of each sample towards
the guiding vector of its class. It then tries out one guided step on some batches, measures the loss of the result on
samples that it never trains with (the quiz), and sends the gradient of that loss for the guiding vectors. The server
averages gradients over the clients that have the class, and takes a step.

Shapes: C classes, S classes one client owns, N samples of one client, B batch, G width of a guiding vector.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    NonNegative,
    NonNegativeInt,
    Positive,
    Samples,
    Server,
    Unexposed,
    message,
)
from raysim.core.algorithm import drops_single
from raysim.core.ops import cross_entropy
from raysim.core.torch_workarounds import set_training, tensors_replaced

LONGEST = 100.0
"""Maximum norm of the server's gradient, as in the released code."""


@message
class Guides:
    """The guiding vector of every class."""

    vector_CG: Tensor


@message
class Gradient:
    """The gradient of the quiz loss for the guiding vectors of a client's classes, by ascending class id."""

    row_SG: Tensor
    tried_S: Tensor  # bool: whether the guided step had a sample of the class


@dataclass(frozen=True)
class FedL2G(Algorithm[Guides, Gradient, Guides]):
    """Guide local training by a vector per class, trained so that a guided step lowers the loss on other samples."""

    paper: ClassVar[str] = "Zhang et al., 2024, https://arxiv.org/abs/2410.06490"
    averages = "uploads"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"warmup": 50}}

    guide: Literal["logits", "features"] = "logits"
    """What is guided: logits (FedL2G-l in the paper), or representations (FedL2G-f)."""
    lambda_: NonNegative = 1.0
    """Weight of the guidance; 0 omits it."""
    server_lr: Positive = 0.1
    """Learning rate of the guiding vectors. The released scripts have 0.1 for logits and 100 for representations."""
    study_batches: Count = 1
    """Batches in the guided step before the quiz."""
    quiz_batches: Count = 1
    """Batches of samples that the client holds back for the quiz, from at most half of its samples."""
    warmup: NonNegativeInt = 0
    """Number of first rounds in which only the guiding vectors are trained, not the networks."""

    def server_start(self, server: Server[Guides], registrations: Mapping[ClientId, Any]) -> Guides:
        task = server.task
        return Guides(torch.randn(task.num_classes, task.num_classes if self.guide == "logits" else task.feature_dim))

    def server_send(self, server: Server[Guides], to: ClientId) -> Guides:
        return server.state

    def client_update(self, client: Client, down: Guides | None) -> Gradient:
        assert down is not None  # the server sends in every round
        vector_CG, n = down.vector_CG, len(client.data)
        held = min(self.quiz_batches * client.local.batch_size, n // 2)
        is_quiz_N = torch.zeros(n, dtype=torch.bool)
        is_quiz_N[torch.arange(held) * n // max(held, 1)] = True  # evenly spaced, because data may be sorted
        study, quiz = (client.data.subset(one.nonzero()[:, 0]) for one in (~is_quiz_N, is_quiz_N))
        if client.t > self.warmup:
            client.fit(self.loss, vector_CG, data=study)
        studied, asked = drawn(client, study, self.study_batches), drawn(client, quiz, self.quiz_batches)
        gradient_CG = self.gradient(client, vector_CG, studied, asked)
        if client.meter is not None:
            key = (client.arch, "gradient", *(len(batch.y) for batch in (*studied, *asked)))
            client.add_flops(client.meter.of(key, lambda: self.gradient(client, vector_CG, studied, asked)))
        class_S = client.data.y.unique()
        tried_S = torch.isin(class_S, torch.cat([class_S[:0], *(batch.y for batch in studied)]))
        return Gradient(gradient_CG[class_S], tried_S)

    def loss(self, net: Any, batch: Batch, vector_CG: Tensor) -> Tensor:
        """CE + lambda * the mean square of the difference to the guiding vector, over batch and dimensions."""
        feature_BD = net.features(batch.x)
        logits_BC = net.header(feature_BD)
        guided_BG = logits_BC if self.guide == "logits" else feature_BD
        apart_B = (guided_BG - vector_CG[batch.y]).square().mean(1)
        # Eq. A
        return cross_entropy(lambda _: logits_BC, batch, None) + self.lambda_ * batch.mean(apart_B)

    def gradient(self, client: Client, vector_CG: Tensor, study: list[Batch], quiz: list[Batch]) -> Tensor:
        """Return the gradient [C, G] of the quiz loss after a guided step. The network is not changed."""
        if not study or not quiz:
            return torch.zeros_like(vector_CG)
        net, vector_CG = client.net, vector_CG.clone().requires_grad_()
        set_training(net, True)
        buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
        start = {name: weight.detach().requires_grad_() for name, weight in net.named_parameters()}
        with torch.enable_grad():
            with tensors_replaced(net, {**buffers, **start}):
                guided = mean(self.loss(net, batch, vector_CG) for batch in study)
            slopes = torch.autograd.grad(guided, list(start.values()), create_graph=True)
            # Eq. B
            stepped = {name: w - client.local.lr * g for (name, w), g in zip(start.items(), slopes, strict=True)}
            with tensors_replaced(net, {**buffers, **stepped}):
                asked = mean(cross_entropy(net, batch, None) for batch in quiz)
            # Eq. C
            return torch.autograd.grad(asked, vector_CG)[0]

    def server_update(self, server: Server[Guides], ups: Mapping[ClientId, Gradient]) -> None:
        rows, tried = {k: up.row_SG for k, up in ups.items()}, {k: up.tried_S for k, up in ups.items()}
        mean_CG, _ = server.class_mean(rows, tried, server.state.vector_CG.shape[1])
        norm = torch.linalg.vector_norm(mean_CG)
        # Eq. D
        server.state = Guides(server.state.vector_CG - self.server_lr * mean_CG * (LONGEST / norm).clamp(max=1))
        server.log("gradient_norm", float(norm))

    def exposed(self, client: Client, up: Gradient) -> Unexposed:
        return Unexposed("uploads gradients of the guiding vectors, not of the network")


def drawn(client: Client, data: Samples, count: int) -> list[Batch]:
    """Draw augmented batches from these samples."""
    size, drop_single = client.local.batch_size, drops_single(client.net, data, client.local)
    return list(data.shuffled(size, 1, client.rng, drop_single, steps=count))


def mean(losses: Iterable[Tensor]) -> Tensor:
    """Return the mean of the losses of batches."""
    return torch.stack(list(losses)).mean()
