"""Methods with what they add switched off are the methods they build on, bit for bit (algorithms.md, section 9).

On real CIFAR-100: 10 clients with 10 of the 100 classes each, five CNNs, all of them in every round; 48 training images
per client keep it short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from raysim.core.data import Shards
from raysim.core.messages import Weights
from raysim.engine.inprocess import InProcess
from raysim.engine.placement import Machine, make_plan
from raysim.engine.world import World
from raysim.launch.check import check
from raysim.launch.run import deal, read_data, world_of
from raysim.scenario.load import load_scenario

ROUNDS, PER_CLIENT = 2, 48


@cache
def base(data_root: str) -> tuple[World, NDArray[np.uint8]]:
    """The world of Standalone, and the images."""
    checked = check(
        load_scenario(
            {
                "name": "reductions",
                "rounds": ROUNDS,
                "algorithm": {"name": "standalone"},
                "data": {
                    "name": "cifar100",
                    "root": data_root,
                    "partition": {"name": "pathological", "classes_per_client": 10},
                },
                "clients": {"count": 10, "models": ["cnn1", "cnn2", "cnn3", "cnn4", "cnn5"]},
                "training": {"batch_size": 16, "momentum": 0.9},
            }
        )
    )
    data = read_data(checked)
    world = world_of(checked, data, deal(checked, data), make_plan(checked.asks, Machine(1, 0), 1.0))
    rng = np.random.default_rng(0)
    few = [np.sort(rng.choice(world.train.of(k), PER_CLIENT, replace=False)) for k in range(10)]
    train = Shards(np.concatenate(few), np.arange(11, dtype=np.int64) * PER_CLIENT)
    return replace(world, train=train), data.image_MHWC


@cache
def after(data_root: str, method: str, settings: tuple[tuple[str, Any], ...]) -> Mapping[int, Weights]:
    """Every client's weights after two rounds."""
    world, image_MHWC = base(data_root)
    scenario = {
        "name": "one",
        "rounds": 1,
        "algorithm": {"name": method, **dict(settings)},
        "data": {"name": "cifar100"},
        "clients": {"count": 1, "models": ["cnn1"]},
    }
    backend = InProcess()
    try:
        backend.start(replace(world, algorithm=load_scenario(scenario).algorithm), image_MHWC)
        for t in range(1, ROUNDS + 1):
            report = backend.round(t, range(10), False, lambda done: None)
            assert not report.server.rejected
        return backend.states()[0]
    finally:
        backend.close()


REDUCED = [
    ("fedssa", {"mu0": 0.0, "fuse_first": False}, "standalone", {}),
    ("fedral", {"init": "zeros", "train_matrix": False}, "standalone", {}),
    ("hks", {"alpha": 0.0, "warmup": 1}, "standalone", {}),
    ("dc_pfl", {"lambda_": 0.0, "virtual_samples": 0}, "fedgh", {"server_mode": "per_client"}),
]


@pytest.mark.parametrize(("method", "settings", "like", "like_settings"), REDUCED, ids=[row[0] for row in REDUCED])
def test_reduction(
    data_root: str, method: str, settings: dict[str, Any], like: str, like_settings: dict[str, Any]
) -> None:
    found = after(data_root, method, tuple(settings.items()))
    expected = after(data_root, like, tuple(like_settings.items()))
    for k, weights in expected.items():
        for name, weight in weights.items():
            own = found[k].get(name, found[k].get(f"model.{name}"))
            assert own is not None and own.equal(weight), (k, name)


@pytest.mark.parametrize(("method", "settings", "like", "like_settings"), REDUCED, ids=[row[0] for row in REDUCED])
def test_what_was_switched_off_matters(
    data_root: str, method: str, settings: dict[str, Any], like: str, like_settings: dict[str, Any]
) -> None:
    kept = {"warmup": 1} if method == "hks" else {}
    found = after(data_root, method, tuple(kept.items()))[0]
    expected = after(data_root, like, tuple(like_settings.items()))[0]
    assert any(not found.get(name, found.get(f"model.{name}")).equal(weight) for name, weight in expected.items())
