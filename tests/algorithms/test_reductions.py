"""Methods with what they add switched off are the methods they build on, bit for bit.

On handwritten digits: five clients with two of the ten classes each, which no other client has, and five architectures
(or one with BatchNorm, for methods that need one architecture). All clients take part in every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from raysim.algorithms.fd import FD
from raysim.common.shards import Shards
from raysim.core.messages import Weights
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.sampling import cohort
from raysim.engine.run import run_round
from raysim.plugins.registry import algorithm_class
from raysim.runs.plan import make_plan
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import states_of

pytestmark = pytest.mark.xdist_group("reductions")  # one process trains what several methods are compared with once

ROUNDS, CLIENTS, PER_CLIENT = 2, 5, 24
FIVE = ("digits_mlp64", "digits_mlp128", "digits_cnn_s", "digits_cnn_m", "digits_resnet")


@cache
def task(clients: int, models: tuple[str, ...], cifar_root: str | None = None) -> tuple[Plan, NDArray[np.uint8]]:
    """Standalone's run specification with a few training samples of each client, and the images.

    cifar_root: of CIFAR-100, for 10 of its 100 classes per client.
    """
    data: dict[str, Any] = {"name": "digits"} if cifar_root is None else {"name": "cifar100", "root": cifar_root}
    classes = 2 if cifar_root is None else 10
    plan, data = make_plan(
        Scenario.of(
            parse_scenario(
                {
                    "name": "reductions",
                    "rounds": ROUNDS,
                    "algorithm": {"name": "standalone"},
                    "data": {**data, "partition": {"name": "pathological", "classes_per_client": classes}},
                    "clients": {"count": clients, "models": list(models)},
                    "training": {"batch_size": 16, "momentum": 0.9},
                }
            )
        )
    )
    plan = plan
    rng = np.random.default_rng(0)
    few = [np.sort(rng.choice(plan.train.of(k), PER_CLIENT, replace=False)) for k in range(clients)]
    train = Shards(np.concatenate(few), np.arange(clients + 1, dtype=np.int64) * PER_CLIENT)
    return replace(plan, train=train), data.raw()


@cache
def after(method: str, settings: tuple[tuple[str, Any], ...], models: tuple[str, ...] = FIVE) -> Mapping[int, Weights]:
    """Every client's weights after two rounds."""
    plan, raw_M = task(CLIENTS, models)
    scenario = {
        "name": "one",
        "rounds": 1,
        "algorithm": {"name": method, **dict(settings)},
        "data": {"name": "digits"},
        "clients": {"count": 1, "models": ["digits_mlp64"]},
    }
    backend = InProcessBackend()
    try:
        backend.start(replace(plan, algorithm=parse_scenario(scenario).algorithm), lambda: raw_M)
        for t in range(1, ROUNDS + 1):
            report = run_round(backend, t, range(CLIENTS))
            assert not report.server.rejected
        return states_of(backend)[0]
    finally:
        backend.close()


REDUCED = [
    ("fedssa", {"mu0": 0.0, "fuse_first": False}, "standalone", {}),
    ("fedral", {"init": "zeros", "train_matrix": False}, "standalone", {}),
    ("hks", {"alpha": 0.0, "warmup": 1}, "standalone", {}),
    ("dc_pfl", {"lambda_": 0.0, "virtual_samples": 0}, "fedgh", {"server_mode": "per_client"}),
    ("fml", {"a": 1.0, "b": 1.0}, "standalone", {}),
    # With one holder per class no client is taught by others; the plain mean teaches all.
    ("fd", {"gamma": 0.0, "leave_one_out": False}, "standalone", {}),
    ("fedproto", {"lambda_": 0.0}, "standalone", {}),
    ("fedtgp", {"lambda_": 0.0, "server_epochs": 2}, "standalone", {}),
    ("protonorm", {"lambda_": 0.0}, "standalone", {}),
    ("fedcache", {"alpha": 0.0}, "standalone", {}),
    ("fedgen", {"alpha": 0.0, "agg": "weighted"}, "lg_fedavg", {}),
    ("fedclassavg", {"rho": 0.0, "contrastive": False}, "lg_fedavg", {}),
    ("fedprox", {"mu": 0.0}, "fedavg", {}),
    ("ditto", {"lambda_": 0.0}, "standalone", {}),
    ("apfl", {"alpha": 1.0, "adaptive": False}, "standalone", {}),
]


def models_for(method: str) -> tuple[str, ...]:
    """The architectures of the clients that a method is compared on."""
    return ("digits_resnet",) if algorithm_class(method).one_architecture else FIVE


def own(weights: Weights, name: str) -> Tensor:
    """A tensor of the model that a client predicts with, which a method may keep beside others."""
    return next(weights[full] for part in ("", "model.", "personal.") if (full := f"{part}{name}") in weights)


TRIED = ("fedgen",)
"""The method that `make test` tries. The files of all others have the same test on the toy task."""


@pytest.mark.parametrize(
    ("method", "settings", "like", "like_settings"),
    [pytest.param(*row, id=row[0], marks=() if row[0] in TRIED else pytest.mark.large) for row in REDUCED],
)
def test_reduction(method: str, settings: dict[str, Any], like: str, like_settings: dict[str, Any]) -> None:
    models = models_for(method)
    found = after(method, tuple(settings.items()), models)
    expected = after(like, tuple(like_settings.items()), models)
    for k, weights in expected.items():
        for name, weight in weights.items():
            assert own(found[k], name).equal(weight), (k, name)


@pytest.mark.large
def test_fd_runs_where_the_papers_print_a_dash(data_root: str) -> None:
    # 10 of 100 clients with 10 of 100 classes in each of 20 rounds: almost every round some class has one participant,
    # whose leave-one-out mean is 0/0 unless guarded. With 24 samples, some clients lack some of their classes, too.
    plan, raw_M = task(100, ("heterofl_cnn_e",), cifar_root=data_root)
    backend, lonely = InProcessBackend(), 0.0
    try:
        backend.start(replace(plan, algorithm=FD()), lambda: raw_M)
        for t in range(1, 21):
            report = run_round(backend, t, cohort(plan.seed, t, list(range(100)), 10))
            assert not report.server.rejected
            assert all(
                math.isfinite(client_report.train_loss or math.nan) for client_report in report.client_reports.values()
            )
            lonely += report.server.values["single_holder_classes"]
        clients, server = states_of(backend)
    finally:
        backend.close()
    assert lonely > 20
    for state in (*clients.values(), server):
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())
