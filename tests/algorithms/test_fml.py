"""FML against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fml import FML, Pair
from raysim.algorithms.standalone import Standalone
from raysim.common.inputs import image
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Batch, Model, Server, Task, Weights
from raysim.core.messages import wire_bytes
from raysim.models import build_model

TASK = Task(4, 8, ("deep", "norm", "flat"), toy_model)
ONE = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))


class Says(nn.Module):
    """A model whose prediction is given."""

    def __init__(self, *p: float) -> None:
        super().__init__()
        self.logits_1C = nn.Parameter(torch.tensor([p]).log())

    def forward(self, x: Tensor) -> Tensor:
        return self.logits_1C


def pair() -> Pair:
    return Pair(Says(0.5, 0.5), Says(0.9, 0.1))


def loss_of(a: float, b: float) -> float:
    return float(FML(a=a, b=b).loss(pair(), ONE, None).detach())


def test_kat_losses():
    # The own model is taught KL(s||t) = 0.368064, the small one KL(t||s) = 0.510826; labels ln 2 and -ln 0.9.
    assert loss_of(1, 1) == pytest.approx(0.693147 + 0.105361, abs=1e-6)
    assert loss_of(0, 1) == pytest.approx(0.368064 + 0.105361, abs=1e-6)
    assert loss_of(1, 0) == pytest.approx(0.693147 + 0.510826, abs=1e-6)
    assert loss_of(0.5, 0.25) == pytest.approx(
        0.5 * 0.693147 + 0.5 * 0.368064 + 0.25 * 0.105361 + 0.75 * 0.510826, abs=1e-6
    )


def test_each_model_gets_the_gradient_of_its_own_loss():
    # a (p - e_y) + (1 - a) (p - q): 0.5 (-.5, .5) + 0.5 (-.4, .4), and 0.25 (-.1, .1) + 0.75 (.4, -.4).
    net = pair()
    FML(a=0.5, b=0.25).loss(net, ONE, None).backward()
    assert_close(net.model.logits_1C.grad, torch.tensor([[-0.45, 0.45]]))
    assert_close(net.small.logits_1C.grad, torch.tensor([[0.275, -0.275]]))


def test_with_labels_alone_own_models_are_standalone_bit_for_bit():
    alone = Trial(Standalone()).run(3)
    labels = Trial(FML(a=1.0, b=1.0)).run(3)
    mutual = Trial(FML()).run(3)
    for k, net in alone.nets.items():
        for name, weight in net.state_dict().items():
            assert torch.equal(weight, labels.nets[k].state_dict()[f"model.{name}"]), (k, name)
        assert not torch.equal(net.header.weight, mutual.nets[k].model.header.weight)


def test_the_own_model_predicts():
    net = pair()
    assert_close(net(torch.zeros(1, 1)).softmax(1), torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize(("agg", "mean"), [("weighted", 3.0), ("uniform", 2.0)])
def test_the_server_averages_parameters_and_running_statistics(agg: str, mean: float):
    method = FML(agg=agg, small="norm")
    server: Server[Weights] = Server(TASK, torch.Generator(), {0: 1, 1: 3})
    start = method.server_start(server, {})
    filled = [{name: torch.full_like(w, value) for name, w in start.items()} for value in (0, 4)]
    method.server_update(server, {0: Model(filled[0]), 1: Model(filled[1])})
    counter = [name for name in start if name.endswith("num_batches_tracked")]
    assert len(counter) == 1 and any(name.endswith("running_var") for name in start)
    for name, w in server.state.items():
        assert torch.equal(w, torch.full_like(w, 0 if name in counter else mean)), name


def test_bytes_with_cnn_5():
    model = lambda name, *key: build_model(name, num_classes=10, input_spec=image(3, 32, 32), feature_dim=500)  # noqa: E731
    task = Task(10, 500, ("cnn1", "cnn5", "cnn3"), model)
    server: Server[Weights] = Server(task, torch.Generator(), {0: 1})
    server.state = FML().server_start(server, {})
    # Convolutions 3 -> 16 -> 32 of 5 x 5, then 800 -> 500 -> 500 -> 10, biases included.
    small = (75 + 1) * 16 + (400 + 1) * 32 + 801 * 500 + 501 * 500 + 501 * 10
    assert wire_bytes(FML().server_send(server, 0)) == 4 * small


def test_every_client_starts_from_the_same_small_model():
    toy = Trial(FML())
    for net in toy.nets.values():
        for name, w in toy_model("flat", "small").state_dict().items():
            assert torch.equal(w, net.small.state_dict()[name]) and torch.equal(w, toy.server.state[name])
        # Even where the architectures are the same, no memory is.
        addresses = [w.data_ptr() for w in net.parameters()]
        assert len(set(addresses)) == len(addresses)
    deep = Trial(FML(small="deep")).nets[0].small
    assert torch.equal(deep.header.weight, toy_model("deep", "small").header.weight)


def test_an_absent_client_keeps_its_model_and_comes_back_to_the_newest_meme():
    toy = Trial(FML()).round(1)
    kept = {name: w.clone() for name, w in toy.nets[0].state_dict().items()}
    toy.round(2, [1, 2]).round(3, [2, 3])
    assert all(torch.equal(w, kept[name]) for name, w in toy.nets[0].state_dict().items())
    newest = {name: w.clone() for name, w in toy.server.state.items()}
    toy.round(4, [0])
    (down,) = [msg for name, _, msg in toy.sent[-2:] if name == "server_send"]
    assert all(torch.equal(w, newest[name]) for name, w in down.w.items())
    assert not torch.equal(newest["header.weight"], kept["small.header.weight"])
    # One participant: its meme is the mean.
    assert torch.equal(toy.server.state["header.weight"], toy.nets[0].small.header.weight)
