"""Commits behind the rounds: nobody waits for somebody who waits for them, and no longer than is worth it."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.engine.backend import LostError
from raysim.engine.commits import Commits, Part
from raysim.engine.inprocess import InProcess
from raysim.engine.placement import Ask, Machine, make_plan
from raysim.engine.ray_actors import Place
from raysim.engine.ray_backend import RayBackend
from raysim.engine.ray_calls import Calls
from raysim.engine.ray_crew import Crew, Member
from raysim.engine.ray_saving import Saving
from raysim.engine.store import LocalStore
from raysim.engine.survival import Keeper
from tests.engine.scenarios import loaded
from tests.engine.test_survival import outcome
from tests.ray.test_recovery import GIVEN, sleep, wait_until_dead

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def wait_for(path: Path, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return path.exists()


class Near:
    """Reaches the store; is done with what it does only once somebody took all of `Far`'s files."""

    def __init__(self, taken: Path) -> None:
        self.taken = taken

    def save(self, t: int, store: Any) -> None:
        pass

    def saved(self, t: int) -> list[Part]:
        assert wait_for(self.taken, 60)
        return [Part("clients-000001-00000.safetensors", 1, 0, (0,))]


class Far:
    """Does not reach the store; stands still while nobody takes its files."""

    def __init__(self, taken: Path) -> None:
        self.taken = taken

    def relay(self, t: int) -> Iterator[tuple[Part, bytes]]:
        for k in range(1, 9):
            yield Part(f"clients-{t:06d}-{k:05d}.safetensors", 1, 0, (k,)), b"x"
        self.taken.touch()


class Server:
    def save(self, t: int, store: Any) -> tuple[Part, None]:
        return Part("server-000001.safetensors", 1, 0), None


def test_who_relays_is_heard_before_others_are_waited_for(tmp_path: Path) -> None:
    """On two nodes a client moves from far to near while both are committed: near waits for far, far to be heard."""
    import ray

    made = {cls: ray.remote(cls).options(num_cpus=0) for cls in (Near, Far, Server)}
    near, far = (Member(made[cls].remote(tmp_path / "taken"), place=Place(cls.__name__, "", 0)) for cls in (Near, Far))
    server = Member(made[Server].remote(), place=Place("Near", "", 0))
    crew: Any = SimpleNamespace(
        hosts=[near, far], server=server, here="Near", far=False, calls=Calls(lambda actor: None)
    )
    files = Saving(1, LocalStore(tmp_path), crew).with_server()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(files()), daemon=True)
    thread.start()
    thread.join(60)
    for member in (near, far, server):
        ray.kill(member.actor)
    assert found, "near and far wait for each other"
    (clients, _) = found[0]
    assert [k for part in clients for k in part.clients] == list(range(9))
    assert sorted(path.name for path in tmp_path.glob("clients-*")) == [part.name for part in clients[1:]]


@pytest.fixture
def backend() -> Iterator[RayBackend]:
    made = RayBackend(Crew(make_plan([Ask(tuple(range(8)), 2, None, 1.0, 0.0)], Machine(8, 2))))
    yield made
    made.close()


def patch_work(backend: RayBackend, at: int, do: Any) -> None:
    """In every client actor: do something before the work of round `at`."""
    import ray

    def patch(actor: Any) -> None:
        from raysim.engine.host import ClientHost

        work = ClientHost.work

        def later(self: Any, t: int, *rest: Any) -> Any:
            if t == at:
                do()
            yield from work(self, t, *rest)

        ClientHost.work = later  # type: ignore[method-assign, assignment]

    ray.get([host.actor.__ray_call__.remote(patch) for host in backend.crew.hosts])


def test_after_a_long_round_the_commit_does_not_wait_for_the_next(
    backend: RayBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def see() -> None:
        assert wait_for(tmp_path / "commit-000001.json", 60), "round 2 is at work, and round 1 not committed"

    monkeypatch.setattr("raysim.engine.ray_backend.LONG_ROUND_S", 0.0)
    patch_work(backend, 2, see)
    keeper = Keeper(Commits(LocalStore(tmp_path)), 1, 4)
    assert outcome(loaded(GIVEN), backend, keeper) == outcome(loaded(GIVEN), InProcess())  # type: ignore[arg-type]


def test_who_interrupts_does_not_wait_for_a_commit_behind_a_turn(backend: RayBackend, tmp_path: Path) -> None:
    began: list[float] = []
    collect = backend._collect

    def interrupted(work: Any, where: str, progress: Any) -> Any:
        if where == "round 2":
            threading.Timer(1.0, lambda: (began.append(time.monotonic()), _thread.interrupt_main())).start()
        return collect(work, where, progress)

    backend._collect = interrupted  # type: ignore[method-assign]
    patch_work(backend, 2, lambda: sleep(300))
    keeper = Keeper(Commits(LocalStore(tmp_path)), 1, 4)
    with pytest.raises(KeyboardInterrupt):
        outcome(loaded(GIVEN), backend, keeper)  # type: ignore[arg-type]
    assert time.monotonic() - began[0] < 250  # the turn takes 300
    assert keeper.committed is None  # that of round 1 was given up


def test_hurry_only_ever_shortens(backend: RayBackend) -> None:
    import ray

    busy = ray.remote(sleep).options(num_cpus=0).remote(600)
    backend.hurry(0.0)
    backend.hurry(1000.0)
    with pytest.raises(LostError, match="the commit of round 7: those who write it are still at work"):
        backend.calls.in_time([busy], "the commit of round 7")
    ray.cancel(busy, force=True)


def test_an_actor_that_dies_before_it_is_taken_in_is_no_death_of_the_run(backend: RayBackend) -> None:
    import ray

    crew = backend.crew
    member = crew._new_host(crew.plan.groups[0])
    answer = member.actor.pid.remote()
    ray.get(answer)
    ray.kill(member.actor)
    wait_until_dead(member)
    crew.joining.append((0, member, answer))
    crew.take_in()
    assert not crew.joining and len(crew.hosts) == crew.plan.num_actors == 2
    assert crew.calls.until_s is None


def test_closing_ends_those_that_were_to_join(backend: RayBackend) -> None:
    import ray

    crew = backend.crew
    member = crew._new_host(crew.plan.groups[0])
    answer = member.actor.pid.remote()
    ray.get(answer)
    crew.joining.append((0, member, answer))
    backend.close()
    for one in [member, *crew.everyone]:
        wait_until_dead(one)
