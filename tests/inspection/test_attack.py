"""Gradient inversion: PSNR by hand, transmissions as the methods make them, and that the attack works where it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.common.errors import ScenarioError
from raysim.inspection.attack import attack, draw_attack, psnr
from raysim.inspection.transmission import (
    NOTHING,
    OUTPUTS,
    STEPS,
    Knowledge,
    Transmission,
    attack_spec,
    attackable,
    transmit,
)
from raysim.runs.opened import OpenedRun
from raysim.runs.run import Run
from raysim.scenario.registry import algorithm_names

Runs = Callable[..., Run]
ONE = "clients.models=[digits_mlp64]"


def test_psnr_by_hand() -> None:
    zero, tenth = np.zeros((2, 2, 3)), np.full((2, 2, 3), 0.1)
    assert psnr(zero, tenth) == pytest.approx(20)
    assert psnr(zero, tenth, "pfllib") == pytest.approx(24.7712, abs=1e-4)
    assert psnr(zero, zero + 1) == pytest.approx(0)
    half = zero.copy()
    half[0] = 1  # half of all values are off by 1: MSE 1/2
    assert psnr(half, zero) == pytest.approx(3.0103, abs=1e-4)
    assert psnr(zero, zero) == float("inf")
    assert psnr(np.array([[[255]]], np.uint8) / 255, np.zeros((1, 1, 1))) == 0


def test_noise_and_uniform_pixels_have_the_known_level() -> None:
    rng = np.random.default_rng(0)
    grey = np.full(100_000, 0.5)
    assert psnr(grey, rng.uniform(size=100_000)) == pytest.approx(10 * np.log10(12), abs=0.05)  # variance 1/12
    assert psnr(rng.uniform(size=100_000), rng.uniform(size=100_000)) == pytest.approx(10 * np.log10(6), abs=0.05)


def transmission(
    runs: Runs, method: str, knowledge: Knowledge = "white", *sets: str
) -> tuple[Transmission, Tensor, Tensor]:
    """What a client of a tiny run sends for one of its images, that image as networks read it, and its label [1, C]."""
    run = OpenedRun.of(runs(method, "rounds=2", ONE, *sets).folder)
    spec = attack_spec(run.spec)
    with run.backend([1], run.checkpoint(), spec) as backend:
        found = transmit(method, backend, 3, 1, 4, knowledge)
    x = replace(run.samples(1, "train"), transform=spec.transform).subset(torch.tensor([4]))
    return found, x.x, F.one_hot(x.y, spec.num_classes).float()


FIELDS = {
    "hks": ["algorithm.warmup=1"],
    "fedral": ["algorithm.blocks=8"],
    "feddf": ["data.public.share=0.1"],
    "fedgkt": ["clients.models=[digits_resnet]"],
}


@pytest.mark.parametrize("method", [*STEPS, *OUTPUTS])
def test_an_attacker_who_knows_all_sends_what_was_seen(runs: Runs, method: str) -> None:
    seen, x, label = transmission(runs, method, "white", *FIELDS.get(method, []))
    sent_E = seen.send(x, label).detach()
    assert sent_E.shape == seen.seen_E.shape and float(seen.seen_E.abs().max()) > 1e-4
    # Of FedKD's update the server gets what is left after its compression.
    error = (sent_E - seen.seen_E).square().sum() / seen.seen_E.square().sum()
    assert float(error) < (0.06 if method == "fedkd" else 1e-6)
    other = seen.send(torch.zeros_like(x), label).detach()
    assert float((other - seen.seen_E).square().sum() / seen.seen_E.square().sum()) > 1e-3


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("fedavg", 64 * 32 + 32 + 32 * 10 + 10),
        ("lg_fedavg", 32 * 10 + 10),
        ("fedssa", 32 + 1),  # the row of the image's class
        ("fedral", 32 * 32 // 8),
        ("fd", 10),
        ("fedproto", 32),
        ("dc_pfl", 32),
    ],
)
def test_how_many_numbers_are_seen(runs: Runs, method: str, count: int) -> None:
    assert len(transmission(runs, method, "white", *FIELDS.get(method, []))[0].seen_E) == count


@pytest.mark.parametrize("method", ["fedavg", "fml", "fedproto"])
def test_what_a_blind_attacker_knows(runs: Runs, method: str) -> None:
    seen, x, label = transmission(runs, method, "blind")
    error = float((seen.send(x, label) - seen.seen_E).detach().square().sum() / seen.seen_E.square().sum())
    if method == "fedavg":  # the server knows the whole model
        assert error < 1e-6
    else:
        assert error > 1e-3


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedapen"])
def test_gradients_reach_the_image_through_teachers(runs: Runs, method: str) -> None:
    seen, x, label = transmission(runs, method)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    def value(step: float) -> Tensor:
        return seen.send(moved + step * direction, label).square().sum()

    moved = (x + 0.1 * direction).requires_grad_()
    (gradient,) = torch.autograd.grad(value(0.0), moved)
    numeric = (value(1e-3) - value(-1e-3)).item() / 2e-3
    assert float((gradient * direction).sum()) == pytest.approx(numeric, rel=0.02)


def test_the_attack_works_where_it_can_and_not_where_it_cannot(runs: Runs, tmp_path: Path) -> None:
    found = attack(runs("fedavg", "rounds=2", ONE).folder, pairs=3)
    assert (found.round, len(found.images)) == (3, 3)
    assert found.start < 10 and found.unrelated < 12
    assert found.mean > found.unrelated + 15
    assert sorted(found.psnrs)[1] > 30  # the median image is there to the eye
    again = attack(runs("fedavg", "rounds=2", ONE).folder, pairs=1)
    assert np.array_equal(again.images[0].image_HWC, found.images[0].image_HWC)
    assert draw_attack(found, tmp_path / "attack.png").read_bytes().startswith(b"\x89PNG")


def test_originals_are_what_clients_train_on(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.inspection.attack.OUTER", 1)
    result = runs("fedproto", "rounds=1")
    found = attack(result.folder, pairs=4, seed=3)
    run = OpenedRun.of(result.folder)
    for one in found.images:
        assert one.sample in run.spec.train.of(one.client)
        assert np.array_equal(np.round(one.original_HWC * 255), run.raw_M[one.sample])


def test_batchnorm_is_left_out_where_it_cannot_train(runs: Runs) -> None:
    names = ("digits_mlp64", "digits_cnn_s", "digits_resnet")
    models = [names[k % 3] for k in attackable("lg_fedavg", OpenedRun.of(runs("lg_fedavg", "rounds=1").folder).spec)]
    assert set(models) == {"digits_mlp64", "digits_cnn_s"}
    assert len(attackable("fedgh", OpenedRun.of(runs("fedgh", "rounds=1").folder).spec)) == 8
    with pytest.raises(ScenarioError, match=r"all clients that hold samples have BatchNorm, which fedavg cannot train"):
        attack(runs("fedavg", "rounds=1", "clients.models=[digits_resnet]").folder)


def test_the_attack_knows_every_method() -> None:
    assert sorted([*STEPS, *OUTPUTS, *NOTHING]) == algorithm_names()  # each once


def test_methods_that_send_nothing_are_refused(runs: Runs) -> None:
    with pytest.raises(ScenarioError, match=r"^standalone sends nothing; allowed: a run of dc_pfl, fd, "):
        attack(runs("standalone", "rounds=1").folder)
    with pytest.raises(ScenarioError, match=r"^hks sends nothing in round 2; choose the state after another round$"):
        attack(runs("hks", "rounds=1", "algorithm.warmup=9").folder)
