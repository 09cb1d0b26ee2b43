"""FedClassAvg: averaged headers, a proximal term, and private extractors that learn from two views of each image.

Jang, Ha, Jung, Yoon. ICPP 2022. https://arxiv.org/abs/2210.14226
Participants replace their header with the server's, train their whole network, and send the header back; the server
averages headers by sample counts. The clients' loss is the classification loss, plus a supervised contrastive loss over
two augmented views of the batch, plus the distance between the header and the received one.

Shapes: B batch, A = 2B anchors (the first views, then the second), C classes, D representation width.
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
    Header,
    NonNegative,
    Positive,
    Server,
    UpdateOf,
    Weights,
    weights,
)
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FedClassAvg(Algorithm[Header, Header, Header]):
    """Average the linear headers; local training adds a proximal and a supervised contrastive loss."""

    paper: ClassVar[str] = "Jang et al., ICPP 2022, https://arxiv.org/abs/2210.14226"
    averages = "uploads"
    stale_uploads = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"normalise": False, "temperature": 100.0},
    }
    two_views: ClassVar[str] = "contrastive"

    rho: NonNegative = 0.1
    """Weight of the distance between the header and the received header (the released code's mu)."""
    prox: Literal["mean_square", "norm"] = "mean_square"
    """Distance between the header and the received header. `mean_square`: half the mean square of the weights'
    differences plus half that of the biases' (the released code). `norm`: the norm of all differences (the paper)."""
    contrastive: bool = True
    """Add the contrastive loss. `false`: use only averaging and the proximal term, with one view per image."""
    temperature: Positive = 0.07
    """Divisor of the similarities of representations; the released code uses 100, with Adam at 1e-4."""
    base_temperature: Positive = 0.07
    """The contrastive loss is multiplied by temperature / base_temperature."""
    normalise: bool = True
    """Scale representations to length 1 before their dot products; `false`: use them unscaled."""

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Header:
        return Header(weights(server.task.new_header()))

    def server_send(self, server: Server[Header], to: ClientId) -> Header:
        return server.state

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)

    def client_update(self, client: Client, down: Header | None) -> Header:
        given = down.w if down is not None and self.rho else None
        client.fit(self.loss, given, two_views=self.contrastive)
        return Header(weights(client.net.header))

    def loss(self, net: Any, batch: Batch, given: Weights | None) -> Tensor:
        """CE of the first view + contrastive loss of both views + rho * distance to the received header (`given`).

        Both views pass through the network as one batch, so BatchNorm sees them together, as in the released code.
        """
        if self.contrastive:
            assert batch.second is not None
            feature_AD = net.features(torch.cat([batch.x, batch.second]))
            first_BC = net.header(feature_AD[: len(batch.y)])
            loss = cross_entropy(lambda _: first_BC, batch, None) + batch.mean(self.contrast(feature_AD, batch))
        else:
            loss = cross_entropy(net, batch, None)
        # Eq. A
        return loss if given is None else loss + self.rho * self.distance(net.header, given)

    def contrast(self, feature_AD: Tensor, batch: Batch) -> Tensor:
        """Return the supervised contrastive loss of each sample, [B], as the mean over its two views.

        For an anchor a with positives P, which are all other views of its class, including its own other view:
        -(temperature / base_temperature) * mean over p in P of log softmax(similarity(a, .))[p]. The softmax is over
        all other views, without padding (weight 0).
        """
        if self.normalise:
            feature_AD = F.normalize(feature_AD, dim=1)
        similar_AA = feature_AD @ feature_AD.T / self.temperature
        label_A = batch.y.repeat(2)
        other_AA = ~torch.eye(len(label_A), dtype=torch.bool)
        if batch.weight is not None:
            other_AA = other_AA & (batch.weight.repeat(2) > 0)
        positive_AA = other_AA & (label_A[:, None] == label_A)
        log_p_AA = similar_AA.masked_fill(~other_AA, -torch.inf).log_softmax(1)
        # Only padding needs the clamp, because each real view has at least one positive, its other view.
        mean_A = log_p_AA.where(positive_AA, 0.0).sum(1) / positive_AA.sum(1).clamp(min=1)
        # Eq. B
        return -self.temperature / self.base_temperature * mean_A.view(2, -1).mean(0)

    def distance(self, header: nn.Linear, received: Weights) -> Tensor:
        """The proximal term, a scalar; its gradient is 0 if the headers are equal."""
        differences = [parameter - received[name] for name, parameter in header.named_parameters()]
        # Eq. C
        if self.prox == "norm":
            return torch.linalg.vector_norm(torch.cat([difference.flatten() for difference in differences]))
        return torch.stack([difference.square().mean() for difference in differences]).sum() / 2

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        # Eq. D
        server.state = Header(server.mean({k: up.w for k, up in ups.items()}))
        server.log("header_norm", float(torch.linalg.vector_norm(server.state.w["weight"])))

    def exposed(self, client: Client, up: Header) -> UpdateOf:
        # In the first step, neither the contrastive loss nor the proximal term has a gradient for the header.
        return UpdateOf(client.net.header, up.w, loss=cross_entropy)
