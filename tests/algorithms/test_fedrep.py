"""FedRep against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from raysim.algorithms.fedrep import FedRep
from raysim.contract.toy import toy_model
from raysim.core import Client, LocalTraining, Task
from raysim.core.data import tensors
from raysim.core.seeds import seeded
from tests.algorithms.nets import Chain

TASK = Task(4, 8, ("flat",), toy_model)


def test_header_then_extractor_by_hand():
    net = Chain()
    data = tensors(torch.tensor([[1.0]]), torch.tensor([0]))
    client = Client(0, TASK, data, net, LocalTraining(lr=1.0, batch_size=1), seeded(1, "client"))
    up = FedRep(header_epochs=1).client_update(client, None)
    # d CE / d(ab) = sigmoid(ab) - 1 = -0.268941 at a = b = 1; so b becomes 1.268941, and a stays 1.
    assert net.header.weight.item() == pytest.approx(1.268941, abs=1e-6)
    # Under that header: a = 1 + b * (1 - sigmoid(b)) = 1 + 1.268941 * 0.219440, and b stays.
    assert net.extractor.weight.item() == pytest.approx(1.278456, abs=1e-5)
    assert {name: w.item() for name, w in up.w.items()} == {"extractor.weight": net.extractor.weight.item()}
