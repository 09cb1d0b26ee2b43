"""Results of client actors: the same in one call and in a stream, and the error of a stream that fails."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raysim.engine.ray.actors import ClientActor, WorkReport, WorkResult
from raysim.engine.ray.backend import RayBackend
from raysim.engine.ray.pool import ActorPool
from raysim.engine.records import LostError, MemoryReport

GROUPS = [(3,), (1, 4)]


class Worker:
    """Replaces a `ClientWorker`."""

    def train(self, t: int, groups: Any, *rest: Any) -> Iterator[tuple[int, str, str]]:
        for group in groups:
            for k in group:
                yield k, f"upload {k}", f"report {k}"


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> ClientActor:
    actor = ClientActor()
    actor._worker = cast(Any, Worker())
    monkeypatch.setattr(actor, "_memory", lambda: MemoryReport(1.0))
    return actor


@pytest.fixture
def backend() -> RayBackend:
    def fail(refs: Any, where: str) -> None:
        raise LostError(f"{where}: {refs}")

    return RayBackend(cast(ActorPool, SimpleNamespace(calls=SimpleNamespace(get=fail))))


def test_a_stream_holds_the_results_of_one_call(
    actor: ClientActor, backend: RayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysim.engine.ray.actors.STREAM_S", -1.0)
    whole = actor.train(1, GROUPS, None, (), None)
    assert whole.uploads.keys() == whole.report.reports.keys() == {3, 1, 4}
    stream = actor.train_streaming(1, GROUPS, None, (), None)
    results = list(iter(lambda: backend._next_result(stream, "round 1"), None))
    assert results == [
        WorkResult({k: f"upload {k}"}, WorkReport({k: f"report {k}"}, MemoryReport(1.0)))  # type: ignore[dict-item]
        for k in (3, 1, 4)
    ]


def test_a_failed_stream_raises_its_error_after_its_results(backend: RayBackend) -> None:
    stream = iter(["uploads", "report", "error"])
    assert backend._next_result(stream, "round 1") == WorkResult("uploads", "report")
    with pytest.raises(LostError, match=r"^round 1: \['error'\]$"):
        backend._next_result(stream, "round 1")
    assert backend._next_result(stream, "round 1") is None
