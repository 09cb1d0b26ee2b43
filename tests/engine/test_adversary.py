"""Malicious clients and robust rules: numbers by hand, and rules that bear what the mean does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.core.messages import Header, Model, message
from raysim.engine.policies.attacks import InnerProduct, LabelFlip, Malicious, Noise, SignFlip
from raysim.engine.policies.sampling import draw_share
from raysim.engine.stages import Uploads
from tests.engine.scenarios import digits

AVERAGED = {"algorithm": {"name": "fedavg"}, "clients": {"count": 8, "models": ["digits_cnn_s"]}}


@message
class Rows:
    """An upload that differs in form from what its sender gets."""

    class_S: torch.Tensor
    row_SD: torch.Tensor


def model(value: float) -> Model:
    return Model({"w": torch.tensor([value]), "bn.running_var": torch.tensor([1.0]), "n": torch.tensor(3)})


def attacked(attack: Any, ups: dict[int, Any], downs: dict[int, Any]) -> dict[int, Any]:
    return Uploads.of(ups, downs.get).after([Malicious(frozenset({1}), attack, seed=1)], 1).ups


def test_an_attack_turns_the_step_from_what_the_client_got() -> None:
    ups = {0: model(3.0), 1: model(4.0), 2: model(5.0)}
    downs = {k: model(2.0) for k in ups}
    changed = attacked(SignFlip(5.0), ups, downs)
    assert changed[0] is ups[0]
    assert changed[1].w["w"].item() == 2 - 5 * (4 - 2)
    assert changed[1].w["bn.running_var"] is ups[1].w["bn.running_var"]
    assert changed[1].w["n"] is ups[1].w["n"]
    assert attacked(InnerProduct(2.0), ups, downs)[1].w["w"].item() == 2 - 2 * ((1 + 3) / 2)
    noise = attacked(Noise(1.0), ups, downs)[1].w["w"].item()
    assert noise != 4.0
    assert noise == attacked(Noise(1.0), {1: model(4.0)}, downs)[1].w["w"].item()  # keyed by round and client


def test_an_attack_turns_the_values_of_other_uploads() -> None:
    up = Rows(torch.tensor([0, 4]), torch.tensor([[1.0], [2.0]]))
    changed = attacked(SignFlip(5.0), {1: up}, {1: Header({"w": torch.zeros(1)})})[1]
    assert changed.row_SD.tolist() == [[-5.0], [-10.0]]
    assert changed.class_S is up.class_S


def test_wrong_labels_leave_the_upload_itself() -> None:
    up = model(4.0)
    assert attacked(LabelFlip(), {1: up}, {1: model(2.0)})[1] is up
    malicious = Malicious(frozenset({1}), LabelFlip(), 1)
    label_N = np.array([0, 9, 3])
    assert malicious.labels(1, label_N, 10).tolist() == [9, 0, 6]
    assert malicious.labels(0, label_N, 10).tolist() == [0, 9, 3]


def test_a_share_of_the_clients_is_drawn_once() -> None:
    assert len(draw_share(3, "malicious", 0.29, 100)) == 29
    assert draw_share(3, "malicious", 0.29, 100) != draw_share(4, "malicious", 0.29, 100)


@pytest.mark.parametrize("attack", [{"name": "sign_flip", "factor": 5.0}, {"name": "label_flip"}])
def test_a_rule_bears_what_the_mean_does_not(attack: dict[str, Any], workplace: Path) -> None:
    scenario = digits(
        **AVERAGED,
        data={"name": "digits"},
        rounds=8,
        adversary={"clients": "0-2", "attack": attack},
        evaluation={"clients": "all"},
    )
    accuracy = {}
    for rule in ("", "median"):
        sets = [f"aggregator.rule.name={rule}"] if rule else []
        run = raysim.run(scenario, sets=sets, quiet=True)
        accuracy[rule] = run.rounds["accuracy/all_current_pooled"].iloc[-1]
        assert run.summary["malicious_clients"] == [0, 1, 2]
    assert accuracy["median"] > accuracy[""] + 0.1, accuracy
