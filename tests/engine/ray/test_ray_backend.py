"""Real actors: the same bits as in one process for any number of them, and resources as asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.algorithms.standalone import Standalone
from raysim.common.errors import HookError, RunError
from raysim.common.results import ClientRow
from raysim.engine.backend import Backend
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.placement import ActorGroup, ClusterResources, Group, ResourceRequest, lay_out
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.run import state_digest
from raysim.engine.workers.state_files import StateLimits
from raysim.plugins.registry import algorithm_names
from raysim.results.in_memory import MemoryTracker
from raysim.runs.plan import make_plan
from raysim.runs.run import Run, run
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from tests.choices import first
from tests.engine.scenarios import all_rounds, loaded, of_method
from tests.engine.test_system import UNEVEN
from tests.engine.test_system import rounds_on as rounds_in_virtual_time
from tests.engine.test_training_settings import SETTINGS

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

ACTORS = 3


def result_of(*sets: str, **changes: Any) -> Run:
    return run(loaded(*sets, **changes), quiet=True)


def clients(result: Run) -> pa.Table:
    """clients.parquet without its timings."""
    table = pq.read_table(result.folder / "clients.parquet")
    return table.drop_columns([name for name in table.column_names if name.endswith("_s")])


@pytest.fixture
def actors_at_work() -> Iterator[Any]:
    """The live actors of this Ray, as its state API lists them."""
    from ray._private.state import actors

    yield lambda: [actor for actor in actors().values() if actor["State"] == "ALIVE"]


@pytest.fixture(scope="module")
def backend(ray_session: None) -> Iterator[RayBackend]:
    """A backend that every method uses: actors are slow to start and can begin a new run at any time."""
    layout = lay_out([ResourceRequest(tuple(range(8)), ACTORS, None, 1.0, 0.0)], ClusterResources(8, 2))
    on_disk = StateLimits(memory_gb=1e-6)  # where clients' states do not fit into memory
    made = RayBackend(ActorPool(layout, limits=on_disk))
    yield made
    made.close()


def test_tests_that_share_one_ray_run_in_one_process(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("dist", "no") != "no" or hasattr(request.config, "workerinput"):
        assert request.node.nodeid.endswith("@ray"), "pytest-xdist has not read the groups of tests/conftest.py"


def rounds_on(backend: Backend, given: ParsedScenario) -> tuple[str, list[ClientRow], list[dict[str, Any]], int]:
    """Run three rounds: state digest, client rows and round values without timings, clients moved."""
    checked = Scenario.of(given)
    plan, data = make_plan(checked, ClusterResources(8, 2))
    memory = MemoryTracker()
    all_rounds(plan, backend, data.raw, memory)
    rows = [replace(row, train_s=0.0, evaluate_s=0.0) for row in memory.clients]
    varying = ("time/", "memory/", "engine/")
    values = [{k: v for k, v in row.items() if not k.startswith(varying)} for row in memory.rounds]
    moved = int(sum(row.get("engine/moved_clients", 0) for row in memory.rounds))
    return state_digest(backend), rows, values, moved


TRIED = ("hks", "fedgh")
"""Methods that `make test` tries: one whose clients know most, and one whose server trains."""


@pytest.mark.parametrize("method", first([*TRIED, *(name for name in algorithm_names() if name not in TRIED)], 2))
def test_bit_identical_on_any_placement(method: str, backend: RayBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count()

    def dealt(cohort: Sequence[Group], cost_s: object, owner: object, groups: Sequence[ActorGroup]) -> Any:
        """Work lists in turn, from another actor each round, so that most clients move."""
        lists: dict[int, list[Group]] = {}
        for i, members in enumerate(cohort, start=next(turns)):
            lists.setdefault(i % groups[0].actors, []).append(members)
        return lists

    monkeypatch.setattr("raysim.engine.ray.backend.assign", dealt)
    given = loaded(*of_method(method), "clients.participation=0.6", "training.together=2")
    here = InProcessBackend()
    digest, rows, values, _ = rounds_on(here, given)
    here.close()
    assert len(rows) == 8 + 3 * 4
    *there, moved = rounds_on(backend, given)
    assert there == [digest, rows, values]
    assert moved > 0  # else this did not show that a client may change its actor


def test_late_and_dropped_clients_are_the_same_on_any_placement(backend: RayBackend) -> None:
    given = loaded(*UNEVEN)
    expected = rounds_in_virtual_time(InProcessBackend(), given)
    assert sum(row.get("engine/dropped_clients", 0) for row in expected[2]) > 2
    assert rounds_in_virtual_time(backend, given) == expected
    absent = loaded("system={availability: 0}", "rounds=1")
    assert rounds_in_virtual_time(backend, absent) == rounds_in_virtual_time(InProcessBackend(), absent)


@pytest.mark.large
@pytest.mark.parametrize("method", ["fedkd", "fedapen"])
def test_all_clients_are_tested_alike_on_any_placement(method: str, backend: RayBackend) -> None:
    """FedKD's server changes its state as it sends, and FedAPEN's clients train as they receive."""
    given = loaded(*of_method(method), "training.together=2", "evaluation={clients: all, when: both}")
    here = InProcessBackend()
    digest, rows, values, _ = rounds_on(here, given)
    here.close()
    assert len([row for row in rows if row.current_total is not None]) == 4 * 8
    assert rounds_on(backend, given)[:3] == (digest, rows, values)
    assert backend.calls.inputs == ()  # so the object store does not hold the last messages


def test_training_settings_have_the_same_bits_on_any_placement(backend: RayBackend) -> None:
    given = loaded(*of_method("hks"), *SETTINGS, "training.together=2", "clients.models=[digits_mlp64]")
    *expected, _ = rounds_on(InProcessBackend(), given)
    *there, _ = rounds_on(backend, given)
    assert there == expected


def test_a_run_takes_fractions_of_gpus_and_agrees_with_one_process(
    workplace: Path, actors_at_work: Any, backend: RayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 x 0.25 + 1 of the 2 logical GPUs and 3 CPUs are taken; the server takes none; all is given back."""
    import ray

    def exits(gpus: float, cpus: float, actors: int) -> bool:
        """Ray's counts follow with a delay."""
        for _ in range(100):
            free = ray.available_resources()
            found = (free.get("GPU", 0.0), free.get("CPU", 0.0), len(actors_at_work()))
            if found == pytest.approx((gpus, cpus, actors)):
                return True
            time.sleep(0.1)
        return False

    start = RayBackend.start
    # The module's own backend holds its client actors and a server.
    cpus, actors = ray.cluster_resources()["CPU"] - ACTORS, ACTORS + 1
    assert exits(2.0, cpus, actors)
    during: list[bool] = []

    def look(self: RayBackend, *rest: Any) -> Any:
        startup = start(self, *rest)
        during.append(exits(0.5, cpus - 3, actors + 4))
        return startup

    monkeypatch.setattr(RayBackend, "start", look)
    overrides = "[{models: [digits_resnet], actors: 1, gpus_per_actor: 1}]"
    resources = f"resources={{actors: 2, gpus_per_actor: 0.25, overrides: {overrides}}}"
    there = result_of("backend=ray", "rounds=1", resources)
    assert during == [True]
    assert exits(2.0, cpus, actors)
    here = result_of("rounds=1")
    assert there.state_digest == here.state_digest and clients(there).equals(clients(here))


def test_a_failing_hook_is_told_with_its_place(backend: RayBackend) -> None:
    class Broken(Standalone):
        def client_update(self, client: Any, down: None) -> None:
            raise ZeroDivisionError("no")

    given = loaded("algorithm={name: standalone}").model_copy(update={"algorithm": Broken()})
    with pytest.raises(HookError, match=r"Broken.client_update of client \d failed in round 1 .*ZeroDivision") as told:
        rounds_on(backend, given)
    assert "ZeroDivisionError: no" in told.value.trace
    assert (told.value.hook, told.value.round) == ("client_update", 1)
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_a_run_does_not_use_the_ray_of_another_run_of_this_process(
    ray_session: None, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysim.engine.ray.local_cluster.is_running", lambda: True)  # as in another thread's run
    with pytest.raises(RunError, match="another run"):
        run(loaded("backend=ray", "rounds=1"), quiet=True)
