"""FedBABU against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.fedbabu import FedBABU
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Client, Extractor, LocalTraining, Task, weights
from raysim.core.data import tensors
from raysim.core.seeds import seeded
from tests.algorithms.nets import Chain

TASK = Task(4, 8, ("norm",), toy_model)


# d CE / d(ab) = sigmoid(ab) - 1 = -0.268941 at a = b = 1, so the extractor becomes a = 1.268941 under b = 1.
# Fine-tuning begins at ab = 1.268941, where 1 - sigmoid(ab) = 0.219440.
@pytest.mark.parametrize(
    ("method", "a", "b"),
    [
        (FedBABU(fine_tune_epochs=0), 1.268941, 1.0),
        (FedBABU(fine_tune_epochs=1, fine_tune="header"), 1.268941, 1 + 1.268941 * 0.219440),
        (FedBABU(fine_tune_epochs=1), 1.268941 + 0.219440, 1 + 1.268941 * 0.219440),
    ],
    ids=str,
)
def test_extractor_then_fine_tuning_by_hand(method: FedBABU, a: float, b: float):
    net, data = Chain(), tensors(torch.tensor([[1.0]]), torch.tensor([0]))
    client = Client(0, TASK, data, net, LocalTraining(lr=1.0, batch_size=1), seeded(1, "client"))
    up = method.client_update(client, None)
    assert net.extractor.weight.item() == pytest.approx(a, abs=1e-5)
    assert net.header.weight.item() == pytest.approx(b, abs=1e-5)
    assert up.w.keys() == {"extractor.weight"} and up.w["extractor.weight"].item() == pytest.approx(1.268941, abs=1e-6)


def test_every_client_trains_under_the_same_header_again_in_every_round():
    method, fixed = FedBABU(), weights(toy_model("norm").header)
    model = toy_model("norm", "of its own")
    net = method.client_model(model, TASK)
    client = Client(0, TASK, tensors(torch.zeros(1, 1)), net, LocalTraining(), seeded(1, "client"))
    for _ in range(2):
        assert_close({name: weights(net.header)[name] for name in fixed}, fixed, rtol=0, atol=0)
        with torch.no_grad():
            net.header.weight.add_(1.0)
            net.header.bias.add_(1.0)
        method.client_receive(client, Extractor({"extractor.0.bias": torch.full((3,), 7.0)}))
    assert net.extractor[0].bias.tolist() == [7.0] * 3


def test_fine_tuning_changes_what_clients_predict_but_not_what_they_send():
    plain, tuned = Trial(FedBABU(fine_tune_epochs=0)).run(1), Trial(FedBABU(fine_tune_epochs=2)).run(1)
    assert_close(plain.server.state.w, tuned.server.state.w, rtol=0, atol=0)
    for k, net in plain.nets.items():
        assert net.header.weight.equal(net.header.fixed_weight)
        assert not tuned.nets[k].header.weight.equal(net.header.weight)
