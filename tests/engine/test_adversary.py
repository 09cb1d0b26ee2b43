"""Malicious clients and robust rules: numbers by hand, the same bits on any placement, and what a scenario refuses."""

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
from raysim.scenario.scenario import Scenario
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
def test_a_rule_bears_what_the_mean_does_not(attack: dict[str, Any], tmp_path: Path) -> None:
    scenario = digits(
        **AVERAGED,
        data={"name": "digits"},
        rounds=8,
        adversary={"clients": "0-2", "attack": attack},
        evaluation={"clients": "all"},
        output=str(tmp_path),
    )
    accuracy = {}
    for rule in ("", "median"):
        sets = [f"aggregator.rule.name={rule}"] if rule else []
        run = raysim.run(scenario, sets=sets, quiet=True)
        accuracy[rule] = run.rounds["accuracy/all_current_pooled"].iloc[-1]
        assert run.summary["malicious_clients"] == [0, 1, 2]
    assert accuracy["median"] > accuracy[""] + 0.1, accuracy


@pytest.mark.large
def test_attack_rule_and_noise_give_the_same_bits_on_any_placement_and_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    scenario = digits(
        **AVERAGED,
        adversary={"clients": 0.25, "attack": {"name": "noise"}},
        aggregator={"rule": {"name": "multi_krum", "malicious": 2}, "mixing": {"name": "bucketing", "size": 1}},
        privacy={"clip": 1.0, "noise_multiplier": 0.5, "noise_at": "client", "delta": 1e-3},
        output=str(tmp_path),
    )
    sets = [["backend=in_process"], *(["backend=ray", f"resources.actors={n}"] for n in (1, 2, 3))]
    runs = [raysim.run(scenario, sets=one, quiet=True) for one in sets]
    runs.append(raysim.run(scenario, sets=["rounds=2"], quiet=True).resume(["rounds=3"], quiet=True))
    assert len({run.state_digest for run in runs}) == 1


def test_an_own_attack_and_an_own_rule(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Zero:\n"
        "    def change(self, delta, honest, rng):\n"
        "        return 0 * delta\n"
        "@dataclass(frozen=True)\n"
        "class First:\n"
        "    def combine(self, row_KP):\n"
        "        return row_KP[0]\n"
    )
    (tmp_path / "s.yaml").write_text(
        "name: own\nrounds: 1\nbackend: in_process\noutput: .\n"
        "algorithm: {name: fedavg}\ndata: {name: digits}\nclients: {count: 4, models: [digits_mlp64]}\n"
        "adversary: {clients: '0', attack: {name: './mine.py:Zero'}}\n"
        "aggregator: {rule: {name: './mine.py:First'}}\n"
    )
    run = raysim.run(tmp_path / "s.yaml", quiet=True)
    fresh = Scenario.load(tmp_path / "s.yaml").task.model("digits_mlp64")  # client 0 changed nothing, and it counts
    assert run.client(1).current_network.state_dict().keys() == fresh.state_dict().keys()
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"name": "fedgh"}, "aggregator": {"rule": {"name": "median"}}}, ["FedGH", "average"]),
        ({"aggregator": {"rule": {"name": "krum", "malicious": 4}}}, ["malicious: 4", "8"]),
        ({"aggregator": {"rule": {"name": "medain"}}}, ["medain", "median"]),
        ({"adversary": {"clients": 0.1, "attack": {"name": "noise"}}}, ["adversary.clients", "0.1"]),
        ({"adversary": {"clients": "7-9", "attack": {"name": "noise"}}}, ["adversary.clients", "7-9"]),
        (
            {
                "algorithm": {"name": "heterofl"},
                "clients": {"count": 8, "models": ["heterofl_cnn_d", "heterofl_cnn_e"]},
                "aggregator": {"rule": {"name": "krum", "malicious": 1}},
            },
            ["Krum", "median"],
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(raysim.ScenarioError) as error:
        Scenario.load(digits(**{**AVERAGED, **changes}))
    for word in words:
        assert word.lower() in str(error.value).lower()
