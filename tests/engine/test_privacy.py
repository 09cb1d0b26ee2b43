"""Clipping, noise and the account of privacy: numbers by hand, and published accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.core.algorithm import Server, Task
from raysim.core.messages import Model
from raysim.core.private import PrivateMean, Sealed
from raysim.engine.policies.privacy import Account, ClientPrivacy, epsilon_of
from raysim.engine.policies.sampling import Candidates, PoissonSelection
from raysim.engine.stages import Uploads
from tests.engine.scenarios import digits

GIVEN: dict[str, Any] = {
    "clip": 1.0,
    "noise_multiplier": 1.0,
    "noise_at": "server",
    "delta": 1e-3,
    "accountant": "rdp",
    "sampling": "poisson",
    "share": 0.1,
    "clients": 100,
    "seed": 1,
}
AVERAGED: dict[str, Any] = {
    "algorithm": {"name": "fedavg"},
    "clients": {"count": 8, "participation": 0.5, "models": ["digits_mlp64"], "selection": {"name": "poisson"}},
    "privacy": {"clip": 1.0, "noise_multiplier": 0.0, "delta": 1e-3},
}


def private(**changes: Any) -> ClientPrivacy:
    return ClientPrivacy(**{**GIVEN, **changes})


@pytest.mark.parametrize(
    ("changes", "epsilon"),
    [
        ({}, 8.254),
        ({"accountant": "pld"}, 7.096),
        ({"sampling": "uniform"}, 153.142),
        ({"share": 5000 / 763430, "clients": 763430, "delta": 1e-9, "times": 5000}, 4.183),  # of McMahan et al.: 4.634
        ({"share": 5000 / 763430, "clients": 763430, "delta": 1e-9, "times": 5000, "accountant": "pld"}, 3.899),
    ],
)
def test_accounts_of_200_rounds_with_100_clients(changes: dict[str, Any], epsilon: float) -> None:
    pytest.importorskip("dp_accounting")
    times = changes.pop("times", 200)
    assert epsilon_of(private(**changes), times) == pytest.approx(epsilon, abs=1e-3)


def test_noise_at_clients_composes_over_the_rounds_in_which_one_sends() -> None:
    pytest.importorskip("dp_accounting")
    cohorts = {1: [0, 1], 2: [1], 3: [0], 4: [1]}
    at_client = private(noise_at="client", sampling="uniform", noise_multiplier=4.0)
    account = Account(at_client, cohorts.__getitem__)
    epsilons = [account.epsilon(t) for t in (1, 2, 3, 4)]
    assert epsilons == [epsilon_of(at_client, times) for times in (1, 2, 2, 3)]
    assert Account(at_client, cohorts.__getitem__).epsilon(4) == epsilons[3]  # after a resume


def test_only_clients_that_can_take_part_are_accounted(workplace: Path) -> None:
    """Of 8 clients, 2 never take part, so a round has each of the others with probability 4 / 6."""
    pytest.importorskip("dp_accounting")
    given = digits(**AVERAGED, evaluation={"clients": "all"})
    run = raysim.run(given, sets=["privacy.noise_multiplier=1.0", "clients.held_out=0.25"], quiet=True)
    expected = epsilon_of(private(share=4 / 6, clients=6), 3)
    assert run.rounds["privacy/epsilon"].iloc[-1] == pytest.approx(expected)


def test_uploads_are_clipped_by_the_norm_of_their_change() -> None:
    ups = {k: Model({"w": torch.tensor([2.0 + 3 * k, 1.0 + 4 * k])}) for k in (0, 1)}
    down = Model({"w": torch.tensor([2.0, 1.0])})
    clipped = Uploads.of(ups, lambda k: down).after([private()], 1)
    assert clipped.ups[0] is ups[0]
    assert clipped.ups[1].w["w"].tolist() == pytest.approx([2.6, 1.8])  # a change (3, 4) of norm 5 becomes (0.6, 0.8)
    sealed = clipped.sealed()
    with pytest.raises(TypeError, match=r"server\.mean"):
        sealed[0].w["w"].sum()


def test_the_private_mean_by_hand() -> None:
    parts = [{"w": Sealed(torch.tensor([change]), torch.tensor([10.0]))} for change in (0.5, -0.25, 0.75)]
    mean = PrivateMean(0.0, share=0.5, clients=range(4), rng=torch.Generator())
    assert mean.mean(parts)["w"].item() == 10.5  # 1.0 / (0.5 * 4)
    mean.sent = {"w": torch.tensor([7.0])}
    assert mean.mean([])["w"].item() == 7.0  # a round without uploads
    mean.clients = range(3)
    classes = {0: torch.tensor([0, 2]), 1: torch.tensor([2]), 2: torch.tensor([2])}
    server: Server[Any] = Server(
        Task(3, 1, ("norm",), lambda name: None), torch.Generator(), {0: 5, 1: 5, 2: 5}, classes=classes, private=mean
    )
    rows: dict[int, Any] = {0: Sealed(torch.tensor([[1.0], [3.0]]), None), 1: Sealed(torch.tensor([[6.0]]), None)}
    mean_CD, known_C = server.class_mean(rows)
    assert mean_CD.flatten().tolist() == [2.0, 0.0, 6.0]  # 1 / (0.5 * 1) and 9 / (0.5 * 3)
    assert known_C.tolist() == [True, False, True]


def test_the_noise_has_the_deviation_that_is_accounted() -> None:
    mean = PrivateMean(2.0, share=0.5, clients=range(4), rng=torch.Generator().manual_seed(1))
    part = {"w": Sealed(torch.zeros(1_000_000), None)}
    assert float(mean.mean([part])["w"].std()) == pytest.approx(2.0 / 2, rel=0.005)
    at_client = private(noise_at="client", noise_multiplier=3.0)
    noised = at_client({0: {"w": torch.zeros(1_000_000)}}, 1)[0]["w"]
    assert float(noised.std()) == pytest.approx(3.0, rel=0.005)


def test_poisson_selection_draws_any_number() -> None:
    candidates = Candidates(tuple(range(50)), {})
    sizes = [len(PoissonSelection().select(candidates, 5, np.random.default_rng(seed))) for seed in range(400)]
    assert min(sizes) < 3 < 8 < max(sizes)
    assert sum(sizes) / len(sizes) == pytest.approx(5, abs=0.35)


def test_a_wide_clip_without_noise_changes_no_bit(workplace: Path) -> None:
    """Client noise of 0 and a clip above every norm leave each upload itself."""
    plain = digits(**{**AVERAGED, "privacy": None})
    sets = ["privacy={clip: 1000000.0, noise_multiplier: 0.0, noise_at: client, delta: 0.001}"]
    assert raysim.run(plain, quiet=True).state_digest == raysim.run(plain, sets=sets, quiet=True).state_digest


def test_rounds_without_participants_add_noise(workplace: Path) -> None:
    pytest.importorskip("dp_accounting")
    clients = {**AVERAGED["clients"], "participation": 0.13}
    given = digits(**{**AVERAGED, "clients": clients}, rounds=12)
    run = raysim.run(given, sets=["privacy.noise_multiplier=1.0"], quiet=True)
    assert (run.rounds["engine/participants"].iloc[1:] == 0).any()
    assert run.rounds["privacy/epsilon"].iloc[-1] > run.rounds["privacy/epsilon"].iloc[1]
