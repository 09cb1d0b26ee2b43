"""Three hundred damaged scenarios: each is accepted or refused with a sentence, never with another exception."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.core.errors import ScenarioError
from raysim.launch.check import check
from raysim.scenario.load import load_scenario

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    7,
    10**6,
    2**70,
    0.5,
    -0.5,
    1e-9,
    float("inf"),
    float("nan"),
    "",
    "x",
    "auto",
    "0-3",
    "fedavg",
    "cifar100",
    "digits_cnn_s",
    "é\n",
    "9" * 300,
    [],
    [1],
    ["x"],
    [[]],
    [None],
    [{}],
    {},
    {"name": "iid"},
    {"name": None},
    {"name": ["x"]},
    {"name": {}},
    {"x": {"y": [1, {"z": 2}]}},
    {"name": "dirichlet", "alpha": 1e308},
    {"clients": "5-2"},
    [{"clients": "0-999999999999"}],
    [{"clients": "1,,2"}],
    [{"clients": "-1"}],
    [{"models": []}],
    [{"clients": ""}],
    [{"clients": "0-3", "actors": 0}],
    [{"clients": "0", "gpus_per_actor": -1}],
    {"name": "resample", "samples_per_client": 1},
    {"name": "hks", "alpha": 1},
    {"name": "fedgh", "header_lr": 0},
]
KEYS = ["name", "Name", "lr", "x", "", "models", "overrides", "format", "split", "root", "uri", "tags", "every", "when"]
SECTIONS = ["resources", "tracking", "evaluation", "checkpoint", "training", "data", "clients"]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path below a mapping or list."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [found for key in keys for found in [(*path, key), *places(node[key], (*path, key))]]


def damaged(rng: random.Random) -> dict[str, Any]:
    raw = yaml.safe_load(QUICKSTART.read_text())
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        *above, key = rng.choice(places(raw))
        section = raw
        for part in above:
            section = section[part]
        what = rng.choice(["value", "value", "delete", "add", "section", "key"])
        if what == "value":
            section[key] = copy.deepcopy(rng.choice(VALUES))
        elif what == "delete":
            del section[key]
        elif what == "section":
            raw[rng.choice(SECTIONS)] = {rng.choice(KEYS): copy.deepcopy(rng.choice(VALUES))}
        elif isinstance(section, dict):
            value = section.pop(key) if what == "key" else copy.deepcopy(rng.choice(VALUES))
            section[rng.choice(KEYS)] = value
        if not raw:
            break
    return raw


@pytest.mark.parametrize("batch", range(6))
def test_damaged_scenarios_are_accepted_or_refused_with_a_sentence(batch: int):
    rng = random.Random(batch)
    refused = 0
    for _ in range(50):
        raw = damaged(rng)
        try:
            check(load_scenario(raw))
        except ScenarioError as error:
            refused += 1
            assert str(error).startswith("scenario"), f"{raw} -> {error}"
            assert "\n" not in str(error), f"{raw} -> {error}"
        except Exception as error:
            pytest.fail(f"{raw} raises {type(error).__name__}: {error}")
    assert 20 <= refused <= 50  # the damage does damage


ITEMS = [
    "=",
    "a",
    "a=",
    ".=",
    "a.b.c.d.e=1",
    "algorithm=",
    "algorithm.name=",
    "algorithm.name=[x]",
    "data.partition.name={}",
    "clients=[]",
    "clients.models.0=x",
    "training.lr.x=1",
    "resources.overrides.0.actors=1",
    "tracking.tags=[1]",
    "tracking.tags={1: 2}",
    "checkpoint.every=-1",
    "name=",
    "name=''",
    "seed=1_000",
    "seed=0x10",
    "seed=1:30",
    "rounds=!!x 1",
    "rounds=&a [*a]",
    "clients.participation=1e-320",
    "training.epochs=1e3",
    "output=null",
    "data.root=3",
    "x" * 2000 + "=1",
    "algorithm={name: fedgh, name: fedavg}",
    "clients.feature_dim=-3",
    "clients.count=[1, 2",
    "training.lr=-",
    "a=b=c",
    "algorithm.server_mode=[per_lar]",
    "algorithm.server_mode={}",
    "data.partition={name: pathological}",
    "seed=\x00",
    "resources.overrides=[{clients: '0-999999999999'}]",
    "resources.overrides=[{clients: 5}]",
    "clients.models=[[x]]",
    "evaluation.when=after",
    "data.format=zip",
    "resources.cpus_per_actor=.inf",
    "resources.gpus_per_actor=-1",
]


@pytest.mark.parametrize("item", ITEMS, ids=[repr(item[:40]) for item in ITEMS])
def test_any_override_is_accepted_or_refused_with_a_sentence(item: str):
    try:
        check(load_scenario(QUICKSTART, [item]))
    except ScenarioError as error:
        assert "\n" not in str(error)
    else:
        # Those that are meant to be fine: whole numbers as YAML writes them.
        assert item in ("seed=1_000", "seed=0x10", "seed=1:30")
