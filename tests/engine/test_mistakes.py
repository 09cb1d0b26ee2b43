"""Mistakes in a method that would cost training, or the state of a resumed run, without a word: they end the run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim.common.errors import RunError
from raysim.core import Algorithm, Batch, Client, ClientId, Server, Task, message
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.ops import cross_entropy
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.results.in_memory import MemoryTracker
from tests.engine.scenarios import ROUNDS, loaded, outcome, plain, rounds_of
from tests.engine.test_recovery import Dies


@message
class Sent:
    """Anything."""

    x: Any


@dataclass(frozen=True)
class Mistaken(Algorithm[Any, Any, Any]):
    """Local training, in which a test makes a mistake."""

    make: Callable[[Any], Any] = lambda model: model
    begin: Callable[[Client], Any] = lambda client: torch.ones(1)
    loss: Any = cross_entropy
    first: Callable[[], Any] = lambda: None
    update: Callable[[Server[Any]], None] = lambda server: None

    def client_model(self, model: Any, task: Task) -> Any:
        return self.make(model)

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return self.first()

    def client_update(self, client: Client, down: Any) -> Any:
        sent = self.begin(client)
        client.fit(self.loss)
        return Sent(sent)

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Any]) -> None:
        self.update(server)


def run_of(method: AnyAlgorithm, *sets: str) -> MemoryTracker:
    given = plain("algorithm={name: standalone}", "rounds=1", "training.together=1", *sets)
    return rounds_of(given.model_copy(update={"algorithm": method}))[1]


def disconnected(net: Any, batch: Batch, given: Any) -> Tensor:
    return torch.tensor(cross_entropy(net, batch, given).item(), requires_grad=True)


MISTAKES = {
    "a new network": (
        Mistaken(begin=lambda client: setattr(client, "net", copy.deepcopy(client.net))),
        "client.net",
    ),
    "an attribute of the client": (
        Mistaken(begin=lambda client: setattr(client, "cache", 1)),
        "cache",
    ),
    "a loss as a number": (
        Mistaken(loss=disconnected),
        "disconnected",
    ),
    "a tensor with its graph": (
        Mistaken(first=dict, update=lambda server: server.state.update(w=torch.ones(1, requires_grad=True) * 2)),
        "detach",
    ),
    "an optimizer": (
        Mistaken(first=lambda: {"adam": torch.optim.Adam([torch.ones(1, requires_grad=True)])}),
        "state_dict",
    ),
    "a forward hook that stays": (
        Mistaken(begin=lambda client: (client.net.register_forward_hook(lambda *_: None), torch.ones(1))[1]),
        "hook",
    ),
}


@pytest.mark.parametrize(("method", "word"), MISTAKES.values(), ids=MISTAKES)
def test_it_ends_the_run(method: Mistaken, word: str) -> None:
    with pytest.raises(RunError, match=word):
        run_of(method)


@dataclass(frozen=True)
class TrainsAtTheServer(Mistaken):
    """The usual loop of PyTorch, which leaves the gradients of the last step."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return {"net": nn.Linear(2, 1), "w": torch.ones(2, requires_grad=True)}

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Any]) -> None:
        (server.state["net"](server.state["w"]) * server.t).sum().backward()
        with torch.no_grad():
            for value in (server.state["w"], *server.state["net"].parameters()):
                value -= 0.1 * value.grad


def test_gradients_are_not_kept_between_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a resumed run, whose restored state has none, goes on with the same bits."""
    given = loaded("algorithm={name: standalone}", "rounds=3").model_copy(update={"algorithm": TrainsAtTheServer()})
    whole = outcome(given, InProcessBackend())[0]
    checkpoints = CheckpointManager(CheckpointStore(open_storage(tmp_path)), 1, ROUNDS)
    backend = Dies(2, 3)
    assert outcome(given, backend, checkpoints)[0] == whole
    assert not backend.left
