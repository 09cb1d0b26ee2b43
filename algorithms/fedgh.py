"""FedGH: the server trains one header for all clients on the class means of their representations.

Yi, Wang, Liu, Shi, Yu. ACM MM 2023. https://arxiv.org/abs/2303.13137
A participant replaces its header with the server's, trains its whole network, and sends the mean representation of each
class it owns. The server trains its header on those means and their labels; the next participants start from it.

Shapes: C classes, S classes one client owns, D representation width, N samples of one client.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from raysim.core import Algorithm, Client, ClientId, Count, Header, OutputOf, Positive, Server, message, weights
from raysim.core.ops import class_means, cross_entropy, header_step


@message
class ClassMeans:
    """A client's mean representation of each class (in the paper: local averaged representation, LAR)."""

    class_S: Tensor  # int32: ids of the client's classes, ascending
    mean_SD: Tensor  # mean representation of each class


@dataclass(frozen=True)
class FedGH(Algorithm[Header, ClassMeans, Header]):
    """The server trains one global header on the clients' class-mean representations."""

    paper: ClassVar[str] = "Yi et al., ACM MM 2023, https://arxiv.org/abs/2303.13137"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"server_mode": "frozen_random", "first": "local"},
    }

    header_lr: Positive = 0.01
    """Learning rate of the server's SGD on the class means (the paper's eta_theta)."""
    server_mode: Literal["per_lar", "per_client", "frozen_random"] = "per_lar"
    """The data of a server step. `per_lar`: one class mean (the paper's text). `per_client`: all class means of a
    client, as in DC-PFL. `frozen_random`: no steps, so the header is never trained, as in the authors' released
    code."""
    server_epochs: Count = 1
    """Passes of the server over a round's class means."""
    mask_absent: bool = False
    """Exclude classes that have no class mean in this round from the server's softmax, so that their rows do not
    change."""
    first: Literal["broadcast", "local"] = "broadcast"
    """The header of participants in round 1: the server's random header, or their own (`local`, the released code)."""

    @property
    def static_downlink(self) -> bool:
        return self.server_mode == "frozen_random"

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Header:
        return Header(weights(server.task.new_header()))

    def server_send(self, server: Server[Header], to: ClientId) -> Header | None:
        return None if server.t == 1 and self.first == "local" else server.state

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)  # Eq. A

    def client_update(self, client: Client, down: Header | None) -> ClassMeans:
        client.fit(cross_entropy)
        feature_ND = client.outputs(client.net.features)
        class_S, mean_SD, _ = class_means(feature_ND, client.data.y)  # Eq. B
        return ClassMeans(class_S.int(), mean_SD)

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, ClassMeans]) -> None:
        if self.server_mode == "frozen_random":
            return
        header = {name: w.clone().requires_grad_() for name, w in server.state.w.items()}
        absent_C = torch.ones(server.task.num_classes, dtype=torch.bool)
        for up in ups.values():
            absent_C[up.class_S.long()] = False
        loss = torch.zeros(())
        for _ in range(self.server_epochs):
            for class_S, mean_SD in self._steps(ups):
                left_out_C = absent_C if self.mask_absent else None
                # Eq. C
                loss = header_step(header, mean_SD, class_S.long(), self.header_lr, left_out_C)
        server.state = Header({name: w.detach() for name, w in header.items()})
        server.log("header_loss", loss.item())

    def exposed(self, client: Client, up: ClassMeans) -> OutputOf:
        return OutputOf(client.net.features, up.mean_SD)

    def _steps(self, ups: Mapping[ClientId, ClassMeans]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the data of each server step, by ascending client id and class id."""
        for up in ups.values():
            if self.server_mode == "per_client":
                yield up.class_S, up.mean_SD  # Eq. D
            else:
                yield from zip(up.class_S.split(1), up.mean_SD.split(1), strict=True)
