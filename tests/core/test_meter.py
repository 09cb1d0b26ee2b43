"""Operations are counted right, once, and counting leaves no trace."""

from __future__ import annotations

import math

import torch
from torch import nn

from raysim.core.algorithm import Client, Task
from raysim.core.fit import LocalTraining
from raysim.core.meter import FlopMeter, Ledger, flops_of
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from raysim.core.state import digest
from raysim.core.toy import toy_model, toy_samples


def client(arch: str, labels: list[int], meter: FlopMeter | None) -> Client:
    task = Task(4, 8, (arch,), toy_model)
    rng = seeded(7, "client", 1, 0)
    return Client(0, task, toy_samples(labels, 0), toy_model(arch), LocalTraining(2, 3), rng, 1, arch, meter=meter)


def test_a_linear_layer_is_two_operations_per_weight_and_sample():
    layer, x = nn.Linear(5, 7), torch.zeros(3, 5)
    assert flops_of(lambda: layer(x)) == 2 * 3 * 5 * 7


def test_a_step_is_forward_and_backward():
    # The input needs no gradient, so backward is the weight's gradient alone.
    layer, x = nn.Linear(5, 7), torch.zeros(3, 5)
    assert flops_of(lambda: layer(x).sum().backward()) == 2 * (2 * 3 * 5 * 7)


def test_counting_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    flops_of(lambda: torch.rand(100))
    assert torch.equal(torch.rand(2), expected)


def test_a_kind_of_work_is_probed_once():
    meter, runs = FlopMeter(), []
    layer, x = nn.Linear(5, 7), torch.zeros(2, 5)

    def probe() -> None:
        runs.append(1)
        layer(x)

    assert [meter.of("a", probe, 2), meter.of("a", probe, 2), meter.of("b", probe, 2)] == [70.0, 70.0, 70.0]
    assert len(runs) == 2


def test_fit_is_charged_per_sample_it_saw():
    # flat: 16 -> 8 -> 4. Forward 2 * (128 + 32) = 320; backward: the first layer's weights 256, the header's
    # weights and input 64 each. 704 per sample; 7 samples, 2 epochs.
    turn = client("flat", [0, 1, 2, 3, 0, 1, 2], FlopMeter())
    turn.fit(cross_entropy)
    assert turn.ledger.samples == 14
    assert turn.ledger.flops == 14 * 704


def test_a_batch_that_batchnorm_cannot_train_on_is_not_charged():
    turn = client("norm", [0, 1, 2, 3, 0, 1, 2], FlopMeter())
    turn.fit(cross_entropy)
    assert turn.ledger.samples == 12  # 3 + 3, twice; the seventh sample was left out


def test_outputs_are_charged_forward_only():
    turn = client("flat", [0, 1, 2, 3, 0], FlopMeter())
    turn.outputs(turn.net.features)
    assert turn.ledger.flops == 5 * 2 * 16 * 8


def test_counting_changes_neither_the_network_nor_any_draw():
    digests, after = [], []
    for meter in (None, FlopMeter()):
        torch.manual_seed(3)
        turn = client("norm", [0, 1, 2, 3, 0, 1], meter)
        turn.fit(cross_entropy)
        turn.outputs(turn.net.features)
        turn.fit(cross_entropy, given=torch.zeros(1))
        digests.append(digest(turn.net))
        after.append((torch.rand(1).item(), torch.rand(1, generator=turn.rng).item()))
        assert all(parameter.grad is None for parameter in turn.net.parameters())
    assert digests[0] == digests[1]
    assert after[0] == after[1]


def test_one_sample_is_enough_to_count_on():
    turn = client("norm", [2], FlopMeter())
    turn.fit(cross_entropy)
    assert (turn.ledger.samples, turn.ledger.flops) == (0, 0.0)
    assert math.isnan(turn.ledger.train_loss)
    assert digest(turn.net) == digest(toy_model("norm"))


def test_outputs_are_in_data_order_and_in_eval_mode():
    turn = client("norm", [0, 1, 2, 3, 0], None)
    found = turn.outputs(turn.net.features)
    assert found.shape == (5, 8) and not turn.net.training and not found.requires_grad
    with torch.no_grad():
        expected = turn.net.eval().features(turn.data.x)
    assert torch.allclose(found, expected, atol=1e-6)
    assert turn.ledger.flops == 0.0


def test_the_ledger_means_over_samples():
    assert Ledger(loss_sum=6.0, samples=4).train_loss == 1.5


def test_what_a_client_logs_is_in_its_ledger():
    turn = client("flat", [0], None)
    turn.log("drift", torch.tensor(2.0))  # type: ignore[arg-type]
    assert turn.ledger.values == {"drift": 2.0}
