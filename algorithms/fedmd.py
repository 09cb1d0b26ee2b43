"""FedMD: clients score public samples, and each learns from the mean of all scores.

Li, Wang. NeurIPS workshop on federated learning, 2019. https://arxiv.org/abs/1910.03581
Participants send logits of a random part of the public data. In the next round they first train towards the mean of
those logits (digest), then on their own data (revisit).

Shapes: S public samples that are scored in a round, C classes, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Count, Server, Task, message
from raysim.core.ops import cross_entropy


@message
class Request:
    """The public samples that participants score in this round, and what the last round's gave."""

    index_S: Tensor  # int32: places in the public data
    past_S: Tensor | None  # int32: those of the last round
    mean_SC: Tensor | None  # their mean logits


@message
class Scores:
    """A client's logits of the public samples that were asked for."""

    logits_SC: Tensor


@dataclass(frozen=True)
class FedMD(Algorithm[Request, Scores, Request]):
    """Learn from the participants' mean logits on public data."""

    paper: ClassVar[str] = "Li and Wang, 2019, https://arxiv.org/abs/1910.03581"
    public_data: ClassVar[bool] = True

    scored: Count = 5000
    """Public samples that are scored in a round, drawn anew each time; all, if there are fewer."""
    digest_epochs: Count = 1
    """Passes over them, towards the mean logits, before a participant trains on its own data."""
    transfer_epochs: int = 0
    """Passes over the public data with its labels, then over the own data, in a client's first round; 0: none."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        model.register_buffer("began", torch.zeros((), dtype=torch.bool))  # whether it has had its transfer learning
        return model

    def server_start(self, server: Server[Request], registrations: Mapping[ClientId, Any]) -> Request:
        return Request(self.draw(server), None, None)

    def server_send(self, server: Server[Request], to: ClientId) -> Request:
        return server.state

    def client_update(self, client: Client, down: Request | None) -> Scores:
        assert down is not None
        assert client.task.public is not None
        if self.transfer_epochs and not bool(client.net.began):
            client.fit(cross_entropy, data=client.task.public, epochs=self.transfer_epochs)
            client.fit(cross_entropy, epochs=self.transfer_epochs)
            client.net.began.fill_(True)
        if down.past_S is not None:
            past = client.task.public.subset(down.past_S.long())
            client.fit(self.digest, down.mean_SC, data=past, epochs=self.digest_epochs)  # Eq. B
        client.fit(cross_entropy)
        return Scores(client.outputs(client.net, client.task.public.subset(down.index_S.long())))

    def digest(self, net: Any, batch: Batch, mean_SC: Tensor) -> Tensor:
        """The mean distance of logits to the consensus."""
        return batch.mean((net(batch.x) - mean_SC[batch.index]).abs().mean(1))

    def server_update(self, server: Server[Request], ups: Mapping[ClientId, Scores]) -> None:
        mean_SC = torch.stack([up.logits_SC for up in ups.values()]).double().mean(0).float()  # Eq. A
        server.state = Request(self.draw(server), server.state.index_S, mean_SC)

    def draw(self, server: Server[Any]) -> Tensor:
        """Places of the public samples of a round, ascending."""
        assert server.task.public is not None
        size = len(server.task.public)
        return torch.randperm(size, generator=server.rng)[: self.scored].sort().values.int()
