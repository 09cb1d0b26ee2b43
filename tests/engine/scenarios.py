"""Small scenarios on scikit-learn's digits, and runs of them, that engine tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from raysim.common.results import ClientRow, Tracker
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.store import CheckpointManager
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.progress import Progress
from raysim.engine.recorder import Recorder
from raysim.engine.run import Rounds
from raysim.engine.stop import Stop
from raysim.plugins.registry import algorithm_names
from raysim.results.in_memory import MemoryTracker
from raysim.runs.plan import make_plan
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario
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
    "fedbabu": ["clients.models=[digits_cnn_s]"],
    "fedala": ["clients.models=[digits_cnn_s]"],
    "feddbe": ["clients.models=[digits_cnn_s]"],
    "fedprox": ["clients.models=[digits_cnn_s]"],
    "fedmd": ["data.public={share: 0.2}", "algorithm.scored=100"],
    "feddf": ["data.public={share: 0.2}"],
    "heterofl": ["clients.models=[heterofl_cnn_d, heterofl_cnn_e]"],
    "fedgkt": ["clients.models=[digits_resnet]"],
    **{name: ["clients.models=[digits_vit_lora2, digits_vit_lora4]"] for name in ("hetlora", "flexlora", "raflora")},
    "fedrolex": ["clients.models=[heterofl_cnn_d, heterofl_cnn_e]"],
}
"""What a method needs besides its name to show something."""


_DIFFERENT = ("hks", "fedkd", "fedssa", "dc_pfl")
FEW = first([*_DIFFERENT, *(name for name in algorithm_names() if name not in _DIFFERENT)], 2)
"""Methods for tests of one mechanism of the engine: `make test` tries two, whose hooks differ most."""


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


def all_rounds(
    plan: Plan,
    backend: Backend,
    raw: Callable[[], NDArray[Any]],
    *trackers: Tracker,
    checkpoints: CheckpointManager | None = None,
    after: Callable[[Rounds, int], object] = lambda rounds, t: None,
    **options: Any,
) -> str:
    """Start the backend, run all rounds without a folder, and return the digest. options: those of `Rounds`."""
    with Recorder(trackers) as record:
        rounds = Rounds(plan, backend, record, checkpoints, **options)
        rounds.start(raw)
        for t in rounds:
            after(rounds, t)
        return rounds.state_digest()


def rounds_of(given: ParsedScenario, **changes: Any) -> tuple[InProcessBackend, MemoryTracker, str]:
    """Run a scenario in this process, without a folder. changes: fields of the `Plan`."""
    plan, data = make_plan(Scenario.of(given))
    backend, memory = InProcessBackend(), MemoryTracker()
    digest = all_rounds(replace(plan, **changes), backend, data.raw, memory)
    return backend, memory, digest


ROUNDS = 4
"""Of a run whose `outcome` is compared."""

Outcome = tuple[str, list[ClientRow], list[dict[str, Any]]]


def planned(given: ParsedScenario, **changes: Any) -> tuple[Plan, Callable[[], NDArray[Any]]]:
    """The plan of a scenario, with other fields, and its samples."""
    plan, data = make_plan(Scenario.of(given))
    return replace(plan, **changes), data.raw


def outcome(
    given: ParsedScenario,
    backend: Backend,
    checkpoints: CheckpointManager | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    all_every: int | None = None,
    **changes: Any,
) -> Outcome:
    """(state digest, client rows, round values), without timings and what the engine says of itself."""
    schedule = EvaluationSchedule(ROUNDS, every=2, all_every=all_every)
    plan, raw = planned(given, num_rounds=ROUNDS, evaluations=schedule, **changes)
    memory = MemoryTracker()
    try:
        digest = all_rounds(plan, backend, raw, memory, checkpoints=checkpoints, progress=progress, stop=stop)
    finally:
        backend.close()
    rows = [replace(row, train_s=0.0, evaluate_s=0.0) for row in memory.clients]
    varying = ("time/", "memory/", "engine/")
    return digest, rows, [{k: v for k, v in one.items() if not k.startswith(varying)} for one in memory.rounds]
