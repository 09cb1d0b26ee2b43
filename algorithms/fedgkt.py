"""FedGKT: clients train small networks and send the outputs of the first stage; the server trains the later stages.

He, Annavaram, Avestimehr. NeurIPS 2020. https://arxiv.org/abs/2007.14513
A participant trains its small network, with the server's logits as teachers, and sends the outputs of its first stage,
its logits and its labels. The server trains a large network on them, with the clients' logits as teachers, and sends
each participant the server's logits of the participant's samples.

Shapes: N samples of one client, C classes, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
    tensors,
)
from raysim.core.ops import cross_entropy, kl


@message
class Teacher:
    """The server's logits for the receiver's samples, in data order."""

    logits_NC: Tensor


@message
class Stage:
    """For a client's samples: outputs of the network's first stage, logits, and labels."""

    out_N: Tensor  # [N, ...]
    logits_NC: Tensor
    y_N: Tensor  # int32


class Rest(nn.Module):
    """A network without its first stage."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.stages, self.header = nn.Sequential(*net.stages[1:]), net.header

    def forward(self, out_B: Tensor) -> Tensor:
        """Return the logits [B, C] for the outputs of a first stage."""
        return self.header(self.stages(out_B))


@dataclass
class Kept:
    """The server's state: its network, and its logits for the samples of every client that has taken part."""

    net: Rest
    logits: dict[ClientId, Tensor] = field(default_factory=dict)  # client -> logits [N, C]


@dataclass(frozen=True)
class FedGKT(Algorithm[Teacher, Stage, Kept]):
    """Train a large network at the server on features that the clients' small networks extract."""

    paper: ClassVar[str] = "He et al., NeurIPS 2020, https://arxiv.org/abs/2007.14513"
    state_of_samples: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"server_distill": False, "server_epochs": 20}}

    server_model: str | None = None
    """Architecture whose later stages the server trains; `null`: the clients' architecture with the most parameters."""
    server_epochs: Count = 1
    """The server's passes over the uploads of a round."""
    server_distill: bool = True
    """Train the server also on the clients' logits. `false`: train it on labels only, as in the released scripts."""
    temperature: Positive = 3.0
    """Temperature of the distillation at clients and server."""
    alpha: NonNegative = 1.0
    """Weight of the distillation loss at clients and server, added to the classification loss."""

    def check(self, task: Task) -> None:
        large = self.large(task)
        width = {name: channels(task, name, "clients.models") for name in task.architectures}
        expected = width.get(large) or channels(task, large, "server_model")
        for name, found in width.items():
            if found != expected:
                raise ValueError(
                    f"clients.models: the first stage of {name} outputs {found} channels, but the server model {large} "
                    f"expects {expected}; choose models with the same number of channels, or another server_model"
                )

    def large(self, task: Task) -> str:
        """Return the architecture of the server's network."""
        size = {name: sum(w.numel() for w in task.model(name).parameters()) for name in task.architectures}
        return self.server_model or max(size, key=lambda name: size[name])

    def server_start(self, server: Server[Kept], registrations: Mapping[ClientId, Any]) -> Kept:
        return Kept(Rest(server.task.model(self.large(server.task), "server")))

    def server_send(self, server: Server[Kept], to: ClientId) -> Teacher | None:
        return Teacher(server.state.logits[to]) if to in server.state.logits else None

    def client_update(self, client: Client, down: Teacher | None) -> Stage:
        client.fit(self.loss, None if down is None else down.logits_NC)  # Eq. B
        # Eq. C
        return Stage(client.outputs(client.net.stages[0]), client.outputs(client.net), client.data.y.int())

    def loss(self, net: Any, batch: Batch, teacher_NC: Tensor | None) -> Tensor:
        """Cross-entropy plus, with a teacher, alpha T^2 KL(softmax(teacher / T) || softmax(logits / T)), a scalar."""
        logits_BC = net(batch.x)
        labels = cross_entropy(lambda _: logits_BC, batch, None)
        if teacher_NC is None:
            return labels
        t = self.temperature
        return labels + self.alpha * t**2 * batch.mean(kl(logits_BC, teacher_NC[batch.index], t))  # Eq. A

    def server_update(self, server: Server[Kept], ups: Mapping[ClientId, Stage]) -> None:
        net = server.state.net
        for _ in range(self.server_epochs):
            for up in ups.values():
                teacher_NC = up.logits_NC if self.server_distill else None
                server.fit(net, self.loss, teacher_NC, data=tensors(up.out_N, up.y_N.long()), epochs=1)  # Eq. D
        for k, up in ups.items():
            server.state.logits[k] = server.outputs(net, tensors(up.out_N))  # Eq. E

    def exposed(self, client: Client, up: Stage) -> OutputOf:
        # Only the outputs are declared, because the logits reveal little more.
        return OutputOf(client.net.stages[0], up.out_N)


def channels(task: Task, name: str, key: str) -> int:
    """Return the number of output channels of an architecture's first stage, which is the length of its last parameter.

    key: the setting that names the architecture, for the error. Raises `ValueError` if the architecture has no stages.
    """
    try:
        stages: Any = getattr(task.model(name), "stages", ())
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if len(stages) < 2:
        raise ValueError(
            f"{key}: {name} does not consist of several stages; choose a network that does, such as hks_resnet8"
        )
    return len(list(stages[0].parameters())[-1])
