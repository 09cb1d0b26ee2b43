"""Real actors: the same bits as in one process for any number of them, and resources as asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from algorithms.standalone import Standalone
from raysim.core.errors import ScenarioError
from raysim.core.results import ClientRow
from raysim.engine.backend import Backend
from raysim.engine.hooks import HookError
from raysim.engine.inprocess import InProcess
from raysim.engine.placement import Ask, Machine, make_plan
from raysim.engine.ray_backend import RayBackend
from raysim.engine.run import Progress, Schedule, run_rounds, state_digest
from raysim.launch.check import check
from raysim.launch.run import Result, deal, read_data, run, world_of
from raysim.tracking.memory import MemoryTracker
from tests.engine.scenarios import loaded

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

METHODS = ["fedgh", "lg_fedavg", "standalone", "fedavg"]

PLANS = {
    "one actor": [Ask(tuple(range(8)), 1, None, 1.0, 0.0)],
    "three actors": [Ask(tuple(range(8)), 3, None, 1.0, 0.0)],
    "two groups, pinned": [Ask((0, 3, 6), None, 2, 1.0, 0.0), Ask((1, 2, 4, 5, 7), 1, None, 1.0, 0.5)],
}


def result_of(*sets: str, **changes: Any) -> Result:
    return run(loaded(*sets, **changes), quiet=True)


def clients(result: Result) -> pa.Table:
    """clients.parquet without its timings."""
    table = pq.read_table(result.folder / "clients.parquet")
    return table.drop_columns([name for name in table.column_names if name.endswith("_s")])


@pytest.fixture
def actors_at_work() -> Iterator[Any]:
    """The live actors of this Ray, as its state API lists them."""
    from ray._private.state import actors

    yield lambda: [actor for actor in actors().values() if actor["State"] == "ALIVE"]


@pytest.fixture(scope="module")
def backends(ray_session: None) -> Iterator[dict[str, Backend]]:
    """A backend per plan, used by every method: actors are slow to start and can begin a new run at any time."""
    made = {name: RayBackend(make_plan(asks, Machine(8, 2), 1.0)) for name, asks in PLANS.items()}
    yield {**made}
    for backend in made.values():
        backend.close()


def rounds_on(backend: Backend, *sets: str) -> tuple[str, list[ClientRow], list[dict[str, Any]]]:
    """Run three rounds: state digest, client rows and round values, both without timings."""
    checked = check(loaded(*sets))
    data = read_data(checked)
    plan = make_plan(checked.asks, Machine(8, 2), 1.0)
    world = world_of(checked, data, deal(checked, data), plan)
    memory = MemoryTracker()
    backend.start(world, data.image_MHWC)
    run_rounds(world, Schedule(3, checked.participants), backend, [memory], Progress())
    rows = [replace(row, train_s=0.0, evaluate_s=0.0) for row in memory.clients]
    varying = ("time/", "memory/", "engine/")
    values = [{k: v for k, v in row.items() if not k.startswith(varying)} for row in memory.rounds]
    return state_digest(backend), rows, values


@pytest.mark.parametrize("method", METHODS)
def test_bit_identical_on_any_placement(method: str, backends: dict[str, Backend]) -> None:
    sets = [f"algorithm={{name: {method}}}", "clients.participation=0.6"]
    if method == "fedavg":
        sets.append("clients.models=[hks_resnet8]")
    here = InProcess()
    expected = rounds_on(here, *sets)
    here.close()
    assert len(expected[1]) == 8 + 3 * 4
    for name, backend in backends.items():
        assert rounds_on(backend, *sets) == expected, name


def test_the_whole_command_agrees_too(workplace: Path) -> None:
    here, there = result_of(), result_of("backend=ray", "resources.actors=2")
    assert there.state_digest == here.state_digest
    assert clients(there).equals(clients(here))


def test_clients_move_when_that_balances_and_results_stay(workplace: Path) -> None:
    sets = ["rounds=6", "clients.count=12", "clients.participation=0.34", "algorithm={name: standalone}"]
    here, there = result_of(*sets), result_of(*sets, "resources.actors=2", "backend=ray")
    moved = pq.read_table(there.folder / "rounds.parquet")["engine/moved_clients"].to_pylist()
    assert sum(m or 0 for m in moved) > 0
    assert there.state_digest == here.state_digest


def test_fractional_gpus_add_up(workplace: Path, actors_at_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    seen: dict[str, float] = {}
    start = RayBackend.start

    def look(self: RayBackend, *rest: Any) -> None:
        start(self, *rest)
        seen.update(ray.available_resources())
        seen["actors"] = len(actors_at_work())

    monkeypatch.setattr(RayBackend, "start", look)
    result_of(
        "backend=ray",
        "resources={actors: 2, gpus_per_actor: 0.25, overrides: [{models: [digits_resnet], actors: 1, gpus_per_actor: 1}]}",
    )
    # The session has 2 logical GPUs and 8 CPUs: 2 x 0.25 + 1 GPUs and 3 CPUs are taken; the server takes none.
    assert seen["GPU"] == pytest.approx(0.5)
    assert seen["CPU"] == pytest.approx(5)
    assert seen["actors"] == 4
    assert actors_at_work() == []


def test_more_gpus_than_there_are(workplace: Path) -> None:
    with pytest.raises(ScenarioError, match=r"resources.gpus_per_actor: the plan needs 3 GPUs .* there are 2"):
        result_of("backend=ray", "resources={actors: 3, gpus_per_actor: 1}")


def test_a_failing_hook_is_told_with_its_place(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Standalone):
        def client_update(self, client: Any, down: None) -> None:
            raise ZeroDivisionError("no")

    given = loaded("algorithm={name: standalone}", "backend=ray")
    object.__setattr__(given, "algorithm", Broken())
    with pytest.raises(HookError, match=r"Broken.client_update of client \d failed in round 1 .*ZeroDivisionError"):
        run(given, quiet=True)


def test_a_dead_actor_ends_the_run_with_a_sentence(workplace: Path) -> None:
    class Dying(Standalone):
        def client_update(self, client: Any, down: None) -> None:
            import os

            if client.t == 2:
                os._exit(1)
            super().client_update(client, down)

    given = loaded("algorithm={name: standalone}", "backend=ray", "resources.actors=2")
    object.__setattr__(given, "algorithm", Dying())
    with pytest.raises(Exception, match="round 2: an actor died"):
        run(given, quiet=True)
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    assert pq.read_table(folder / "rounds.parquet")["round"].to_pylist() == [0, 1]
