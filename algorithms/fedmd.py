"""FedMD: clients send logits of public samples, and each learns from the mean of all logits.

Li, Wang. NeurIPS workshop on federated learning, 2019. https://arxiv.org/abs/1910.03581
Participants send logits of a random part of the public data. In the next round, participants first train towards the
mean of those logits (digest), then on their own data (revisit).

Shapes: S public samples per round, C classes, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    NonNegativeInt,
    Samples,
    Server,
    Task,
    Unexposed,
    message,
)
from raysim.core.ops import cross_entropy


@message
class Request:
    """The public samples of this round, and those of the last round with their mean logits."""

    index_S: Tensor  # int32: positions in the public data
    past_S: Tensor | None  # int32: positions of the last round's samples
    mean_SC: Tensor | None  # mean logits of the last round's samples


@message
class Scores:
    """A client's logits of this round's public samples."""

    logits_SC: Tensor


@dataclass(frozen=True)
class FedMD(Algorithm[Request, Scores, Request]):
    """Learn from the participants' mean logits on public data."""

    paper: ClassVar[str] = "Li and Wang, 2019, https://arxiv.org/abs/1910.03581"
    state_of_samples: ClassVar[bool] = True
    public_data: ClassVar[bool] = True

    scored: Count = 5000
    """Number of public samples per round, drawn anew in each round; all samples if there are fewer."""
    digest_epochs: NonNegativeInt = 1
    """Passes over the last round's public samples with their mean logits as targets, before a participant trains on its
    own data; 0: none, so that every client learns alone."""
    transfer_epochs: NonNegativeInt = 0
    """Passes over the labelled public data, and then over the client's own data, before the client's first round; 0:
    none. The public data must be a share of the data set, because other data sets have no usable labels."""

    def check(self, task: Task) -> None:
        if self.transfer_epochs and bool((public(task).y < 0).any()):
            raise ValueError(
                f"transfer_epochs: {self.transfer_epochs} given, but the public data is another data set, whose labels "
                "raysim does not use; set transfer_epochs to 0, or set data.public to {share: 0.1} to use a share of "
                "the clients' data set"
            )

    def client_model(self, model: Any, task: Task) -> nn.Module:
        if self.transfer_epochs:
            # whether the client was trained on the public labels
            model.register_buffer("transferred", torch.zeros((), dtype=torch.bool))
        return model

    def server_start(self, server: Server[Request], registrations: Mapping[ClientId, Any]) -> Request:
        return Request(self.draw(server), None, None)

    def server_send(self, server: Server[Request], to: ClientId) -> Request:
        return server.state

    def client_update(self, client: Client, down: Request | None) -> Scores:
        assert down is not None
        data = public(client.task)
        if self.transfer_epochs and not bool(client.net.transferred):
            client.fit(cross_entropy, data=data, epochs=self.transfer_epochs)
            client.fit(cross_entropy, epochs=self.transfer_epochs)
            client.net.transferred.fill_(True)
        if down.past_S is not None:
            client.fit(self.digest, down.mean_SC, data=data.subset(down.past_S.long()), epochs=self.digest_epochs)
        client.fit(cross_entropy)  # Eq. D
        return Scores(client.outputs(client.net, data.subset(down.index_S.long())))  # Eq. A

    def digest(self, net: Any, batch: Batch, mean_SC: Tensor) -> Tensor:
        """The mean absolute difference between the network's logits and the target logits, a scalar."""
        return batch.mean((net(batch.x) - mean_SC[batch.index]).abs().mean(1))  # Eq. C

    def server_update(self, server: Server[Request], ups: Mapping[ClientId, Scores]) -> None:
        # Eq. B
        mean_SC = sum((up.logits_SC.double() for up in ups.values()), torch.zeros(())) / len(ups)
        server.state = Request(self.draw(server), server.state.index_S, mean_SC.float())

    def exposed(self, client: Client, up: Scores) -> Unexposed:
        return Unexposed("uploads logits of public samples only")

    def draw(self, server: Server[Any]) -> Tensor:
        """Draw the positions of a round's public samples, ascending."""
        order = torch.randperm(len(public(server.task)), generator=server.rng)
        return order[: self.scored].sort().values.int()


def public(task: Task) -> Samples:
    """Return the public data, which the engine provides to every method with `public_data`."""
    assert task.public is not None
    return task.public
