"""Small scenarios on scikit-learn's digits, and runs of them, that engine tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights, weights
from raysim.core.state import state_tensors
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.progress import Progress
from raysim.engine.run import LoopSettings, Observers, run_rounds
from raysim.engine.spec import RunSpec
from raysim.plugins.registry import algorithm_names
from raysim.runs.assembly import assemble
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.tracking.in_memory import MemoryTracker
from tests.choices import first


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


NEEDS = {
    "hks": ["algorithm.warmup=1"],  # by default it would be plain local training in three rounds
    "fedavg": ["clients.models=[digits_cnn_s]"],
    "apfl": ["clients.models=[digits_cnn_s]"],
    "ditto": ["clients.models=[digits_cnn_s]"],
    "fedper": ["clients.models=[digits_cnn_s]"],
    "fedrep": ["clients.models=[digits_cnn_s]"],
    "fedprox": ["clients.models=[digits_cnn_s]"],
    "fedmd": ["data.public={share: 0.2}", "algorithm.scored=100"],
    "feddf": ["data.public={share: 0.2}"],
    "heterofl": ["clients.models=[heterofl_cnn_d, heterofl_cnn_e]"],
    "fedgkt": ["clients.models=[digits_resnet]"],
    "fedrolex": ["clients.models=[heterofl_cnn_d, heterofl_cnn_e]"],
}
"""What a method needs besides its name to show something."""


TYPICAL = {"fedssa", "fedral", "hks", "fedgh", "dc_pfl", "fedkd", "fedmd", "heterofl"}
"""The methods of the five papers, and one method each with a second network, with public data and with
nested widths."""

METHODS = [
    pytest.param(name, marks=() if name in TYPICAL else pytest.mark.large, id=name) for name in algorithm_names()
]
"""All methods, for tests that take a second or more per method; those that are not in `TYPICAL` are in
`make test-large`."""

_DIFFERENT = ("hks", "fedkd", "fedssa", "dc_pfl")
FEW = first([*_DIFFERENT, *(name for name in algorithm_names() if name not in _DIFFERENT)], len(_DIFFERENT))
"""The same for tests of one mechanism of the engine: `make test` tries four methods, whose hooks differ most."""


def of_method(name: str) -> list[str]:
    """The `--set`s that make the tiny scenario one of this method."""
    return [f"algorithm={{name: {name}}}", *NEEDS.get(name, [])]


def loaded(*sets: str, **changes: Any) -> ParsedScenario:
    """The tiny scenario, validated, with `--set` overrides."""
    return parse_scenario(digits(**changes), sets)


def plain_digits(**changes: Any) -> dict[str, Any]:
    """Like `digits`, with one small network for all clients: half the time, for tests that do not look at networks."""
    clients = {"count": 8, "participation": 0.5, "models": ["digits_mlp64"]}
    return digits(**{"clients": clients, **changes})


def plain(*sets: str, **changes: Any) -> ParsedScenario:
    """`plain_digits`, validated, with `--set` overrides."""
    return parse_scenario(plain_digits(**changes), sets)


def rounds_of(given: ParsedScenario, **changes: Any) -> tuple[InProcessBackend, MemoryTracker, str]:
    """Run a scenario in this process, without a folder. changes: fields of the `RunSpec`."""
    assembly = assemble(Scenario.of(given))
    backend, memory = InProcessBackend(), MemoryTracker()
    backend.start(replace(assembly.spec, **changes), assembly.raw)
    digest = run_rounds(backend, assembly.loop_settings, Progress(), Observers([memory]))
    return backend, memory, digest


def states_of(backend: InProcessBackend) -> tuple[dict[ClientId, Weights], Weights]:
    """A copy of the state of every client that has trained, and the server's."""
    clients = {k: weights(backend.worker.net(k)) for k in sorted(backend.worker.states.held)}
    return clients, state_tensors(backend.server.server.state)


ROUNDS = 4
"""Of a run whose `outcome` is compared."""

Outcome = tuple[str, list[ClientRow], list[dict[str, Any]]]


def spec_for(given: ParsedScenario) -> tuple[RunSpec, Any, int]:
    """Of a scenario: the run's specification, its images and the number of participants per round."""
    checked = Scenario.of(given)
    assembly = assemble(checked)
    return assembly.spec, assembly.raw, checked.participants


def outcome(
    given: ParsedScenario,
    backend: InProcessBackend,
    checkpoints: CheckpointManager | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Outcome:
    """(state digest, client rows, round values), without timings and what the engine says of itself."""
    spec, images, participants = spec_for(given)
    memory = MemoryTracker()
    try:
        backend.start(spec, images)
        plan = LoopSettings(ROUNDS, participants, evaluate_every=2, **settings)
        digest = run_rounds(backend, plan, progress or Progress(), Observers([memory]), checkpoints)
    finally:
        backend.close()
    rows = [replace(row, train_s=0.0, evaluate_s=0.0) for row in memory.clients]
    varying = ("time/", "memory/", "engine/")
    return digest, rows, [{k: v for k, v in one.items() if not k.startswith(varying)} for one in memory.rounds]
