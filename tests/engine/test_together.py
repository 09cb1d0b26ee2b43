"""Runs whose clients are trained by one call: the same but for rounding, and what cannot be is logged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

from raysim.algorithms.standalone import Standalone
from raysim.core.algorithm import Client
from raysim.core.data import Batch
from raysim.core.ops import cross_entropy
from raysim.engine.plan import Plan
from raysim.results.in_memory import MemoryTracker
from tests.engine import scenarios
from tests.engine.scenarios import loaded, of_method, planned

EVERYONE = ("clients.models=[digits_mlp64]", "clients.participation=1.0", "rounds=2")


def rounds_of(*sets: str, **changes: Any) -> MemoryTracker:
    return scenarios.rounds_of(loaded(*sets), **changes)[1]


def test_groups_are_clients_of_one_architecture_in_id_order() -> None:
    plan = planned(loaded("clients.count=12", "training.together={digits_mlp64: 3, digits_cnn_s: 2}"))[0]
    # Architectures are dealt in turn: 0, 3, 6 and 9 are perceptrons, two groups of two, as even as can be.
    assert plan.groups([0, 1, 2, 3, 4, 5, 6, 9]) == [(0, 3), (1, 4), (2,), (5,), (6, 9)]
    assert plan.groups([]) == []
    # Fewer than eight are not worth a call, unless so few were asked for.
    auto = replace(plan, models=("digits_mlp64",), together={"digits_mlp64": 32})
    assert auto.groups(range(7)) == [(k,) for k in range(7)]
    assert auto.groups(range(8)) == [tuple(range(8))]
    assert [len(group) for group in auto.groups(range(70))] == [23, 23, 24]
    assert Plan.groups(replace(plan, together={}), [0, 3, 6]) == [(0,), (3,), (6,)]


@pytest.mark.parametrize(
    "sets", [EVERYONE, (*EVERYONE, "evaluation.when=after_receive"), (*of_method("hks"), *EVERYONE)]
)
def test_a_run_is_the_same_but_for_rounding(sets: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    together = rounds_of(*sets, "training.together=3")
    alone = rounds_of(*sets, "training.together=1")
    assert not caplog.messages
    assert [row.client for row in together.clients] == [row.client for row in alone.clients]
    for one, other in zip(together.clients, alone.clients, strict=True):
        for name in ("train_loss", "loss", "accuracy", "macro_f1"):
            one_value, other_value = getattr(one, name), getattr(other, name)
            assert one_value == (other_value and pytest.approx(other_value, rel=1e-4)), name
        for name in ("correct", "val_correct", "class_correct", "train_samples", "up_bytes", "down_bytes", "flops"):
            assert getattr(one, name) == getattr(other, name), name


class Doubtful(Standalone):
    """Its loss takes a number out of a tensor, which no call can do for several clients."""

    def client_update(self, client: Client, down: None) -> None:
        client.fit(self.doubtful)

    def doubtful(self, net: nn.Module, batch: Batch, given: Any) -> Tensor:
        loss = cross_entropy(net, batch, given)
        return loss * 2 if loss.item() > 1 else loss


def test_unsupported_cases_are_warned_of_once_and_trained_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    together = rounds_of(*EVERYONE, "training.together=4", algorithm=Doubtful())
    (warning,) = caplog.messages
    alone = rounds_of(*EVERYONE, "training.together=1", algorithm=Doubtful())
    assert [row.train_loss for row in together.clients] == [row.train_loss for row in alone.clients]
    assert "digits_mlp64" in warning and "training.together" in warning and len(caplog.messages) == 1
