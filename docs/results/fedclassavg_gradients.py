"""FedClassAvg that records the gradient of each term of its loss, for docs/results.md.

raysim launch scenarios/quickstart.yaml --set algorithm.name=docs/results/fedclassavg_gradients.py \
    --set data.partition.classes_per_client=3 --set seed=4
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysim.algorithms.fedclassavg import FedClassAvg
from raysim.core import Batch, Client, Header, Weights, weights
from raysim.core.ops import cross_entropy

TERMS = ("classification", "contrastive", "proximal")


@dataclass(frozen=True)
class Watched(FedClassAvg):
    """Train as FedClassAvg does, and record the greatest norm of each term's gradient in a client's round."""

    def client_update(self, client: Client, down: Header | None) -> Header:
        assert down is not None
        greatest = dict.fromkeys(TERMS, 0.0)

        def loss(net: Any, batch: Batch, received: Weights) -> Tensor:
            assert batch.second is not None
            feature_AD = net.features(torch.cat([batch.x, batch.second]))
            first_BC = net.header(feature_AD[: len(batch.y)])
            terms = (
                cross_entropy(lambda _: first_BC, batch, None),
                batch.mean(self.contrast(feature_AD, batch)),
                self.rho * self.distance(net.header, received),
            )
            for name, term in zip(TERMS, terms, strict=True):
                gradients = torch.autograd.grad(term, list(net.parameters()), retain_graph=True, allow_unused=True)
                norms = [gradient.norm() for gradient in gradients if gradient is not None]
                greatest[name] = max(greatest[name], float(torch.stack(norms).norm()))
            return terms[0] + terms[1] + terms[2]

        client.fit(loss, down.w, two_views=True)
        for name, norm in greatest.items():
            client.log(f"{name}_gradient", norm)
        return Header(weights(client.net.header))
