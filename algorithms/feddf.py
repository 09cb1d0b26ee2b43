"""FedDF: the server averages the models of each architecture, then distils all of them from the ensemble.

Lin, Kong, Stich, Jaggi. NeurIPS 2020. https://arxiv.org/abs/2006.07242
Participants start from the server's model of their architecture, train it and send it back whole. The server averages
those of each architecture, and trains each mean on public data towards the mean logits of all received models.

Shapes: P public samples, B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from raysim.core import Algorithm, Batch, Client, ClientId, Count, Model, Positive, Server, Weights, weights
from raysim.core.ops import cross_entropy, kl, weighted_mean


@dataclass(frozen=True)
class FedDF(Algorithm[Model, Model, dict[str, Model]]):
    """Average the models of each architecture, and distil the means from the ensemble of all models on public data."""

    paper: ClassVar[str] = "Lin et al., NeurIPS 2020, https://arxiv.org/abs/2006.07242"
    public_data: ClassVar[bool] = True

    distill_epochs: int = 1
    """Passes of the server over the public data for each architecture; 0: none, which is FedAvg per architecture."""
    distill_lr: Positive = 1e-3
    """Learning rate of the server's Adam."""
    distill_batch: Count = 128
    """Public samples per step of the server."""

    def check(self, task: Any) -> None:
        if self.distill_epochs < 0:
            raise ValueError(f"distill_epochs: {self.distill_epochs} given; allowed: a whole number, at least 0")

    def server_start(self, server: Server[dict[str, Model]], registrations: Mapping[ClientId, Any]) -> dict[str, Model]:
        return {name: Model(weights(server.task.model(name))) for name in server.task.architectures}

    def server_send(self, server: Server[dict[str, Model]], to: ClientId) -> Model:
        return server.state[server.arch[to]]

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(cross_entropy)  # Eq. A
        return Model(weights(client.net))

    def server_update(self, server: Server[dict[str, Model]], ups: Mapping[ClientId, Model]) -> None:
        teacher_PC = self.ensemble(server, ups) if self.distill_epochs else None
        by_arch: dict[str, list[tuple[float, Weights]]] = {}
        for k, up in ups.items():
            by_arch.setdefault(server.arch[k], []).append((server.num_samples[k], up.w))
        local = replace(server.local, optimizer="adam", lr=self.distill_lr, batch_size=self.distill_batch)
        for name, received in by_arch.items():
            net = server.task.model(name)
            net.load_state_dict(weighted_mean(received))  # Eq. B
            if teacher_PC is not None:
                assert server.task.public is not None
                # Eq. D
                server.fit(net, self.loss, teacher_PC, data=server.task.public, epochs=self.distill_epochs, local=local)
            server.state = {**server.state, name: Model(weights(net))}

    def ensemble(self, server: Server[dict[str, Model]], ups: Mapping[ClientId, Model]) -> Tensor:
        """The mean of all received models' logits on the public data [P, C]."""
        assert server.task.public is not None
        total_PC: Any = 0.0
        for k, up in ups.items():
            net = server.task.model(server.arch[k])
            net.load_state_dict(up.w)
            total_PC = total_PC + server.outputs(net, server.task.public).double()
        return (total_PC / len(ups)).float()  # Eq. C

    def loss(self, net: Any, batch: Batch, teacher_PC: Tensor) -> Tensor:
        """KL(softmax(ensemble) || softmax(net))."""
        return batch.mean(kl(net(batch.x), teacher_PC[batch.index]))
