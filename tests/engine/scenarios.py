"""Small scenarios on scikit-learn's digits that engine tests share."""

from __future__ import annotations

from typing import Any

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, weights
from raysim.core.state import state_tensors
from raysim.engine.inprocess import InProcessBackend
from raysim.scenario.load import Loaded, load_scenario


def digits(**changes: Any) -> dict[str, Any]:
    """Eight clients, three architectures, half of them in each of three rounds."""
    scenario: dict[str, Any] = {
        "name": "tiny",
        "seed": 5,
        "rounds": 3,
        "backend": "in_process",
        "algorithm": {"name": "fedgh"},
        "data": {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 3}, "augment": True},
        "clients": {
            "count": 8,
            "participation": 0.5,
            "models": ["digits_mlp64", "digits_cnn_s", "digits_resnet"],
        },
        "training": {"batch_size": 32, "lr": 0.05, "momentum": 0.9, "clip": 5.0},
        "resources": {"gpus_per_actor": 0},
    }
    return {**scenario, **changes}


FIELDS = {
    "hks": "warmup: 1",  # by default it would be plain local training in three rounds
}


def of_method(name: str) -> str:
    """The `--set` that makes the tiny scenario one of this method."""
    return f"algorithm={{name: {name}, {FIELDS[name]}}}" if name in FIELDS else f"algorithm={{name: {name}}}"


def loaded(*sets: str, **changes: Any) -> Loaded:
    """The tiny scenario, validated, with `--set` overrides."""
    return load_scenario(digits(**changes), sets)


def states_of(backend: InProcessBackend) -> tuple[dict[ClientId, Weights], Weights]:
    """A copy of the state of every client that has trained, and the server's."""
    clients = {k: weights(net) for k, net in sorted(backend.worker.nets.items())}
    return clients, state_tensors(backend.server.server.state)
