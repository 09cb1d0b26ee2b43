"""Mistakes in a method that would cost training, or the state of a resumed run, without a word: they end the run."""

from __future__ import annotations

import copy
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.lg_fedavg import LGFedAvg
from raysim.common.errors import RunError
from raysim.core import Algorithm, Batch, Client, ClientId, Header, Server, Task, message
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.ops import cross_entropy
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.progress import Progress
from raysim.engine.run import Observers, run_rounds
from raysim.runs.assembly import assemble
from raysim.scenario.scenario import Scenario
from raysim.tracking.in_memory import MemoryTracker
from tests.engine.scenarios import loaded


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
    given = loaded("algorithm={name: standalone}", "rounds=1", *sets).with_algorithm(method)
    assembly = assemble(Scenario.of(given))
    backend, memory = InProcessBackend(), MemoryTracker()
    backend.start(assembly.spec, assembly.raw)
    run_rounds(backend, assembly.schedule, Progress(), Observers([memory]))
    return memory


def disconnected(net: Any, batch: Batch, given: Any) -> Tensor:
    return torch.tensor(cross_entropy(net, batch, given).item(), requires_grad=True)


def detached(net: Any, batch: Batch, given: Any) -> Tensor:
    return cross_entropy(net, batch, given).detach()


def without_reset(server: Server[Any]) -> None:
    server.state(torch.ones(1, 2)).sum().backward()


MISTAKES = {
    "a new network": (
        Mistaken(begin=lambda client: setattr(client, "net", copy.deepcopy(client.net))),
        "Mistaken: a hook of client 0 assigned a new network to client.net in round 1, which raysim would not keep",
    ),
    "an attribute of the client": (
        Mistaken(begin=lambda client: setattr(client, "cache", 1)),
        "client.cache cannot be set, because raysim would not keep it between rounds; keep values in buffers of client",
    ),
    "an attribute of the server": (
        Mistaken(update=lambda server: setattr(server, "cache", 1)),
        "server.cache cannot be set, because raysim would not keep it between rounds; keep values in server.state",
    ),
    "a loss as a number": (
        Mistaken(loss=disconnected),
        "the value that disconnected returned does not depend on the network's trained parameters; compute it from",
    ),
    "a detached loss": (
        Mistaken(loss=detached),
        "the value that detached returned does not depend on the network's trained parameters; compute it from",
    ),
    "a defaultdict": (
        Mistaken(first=lambda: defaultdict(int)),
        "the state contains a defaultdict at its top level; use a dict, because a restored state has only dicts",
    ),
    "gradients": (
        Mistaken(first=lambda: nn.Linear(2, 1), update=without_reset),
        "server_update failed in round 1 (message Sent[(1,)]): TypeError: weight in the state has a gradient, which",
    ),
    "a module that is created later": (
        Mistaken(first=dict, update=lambda server: server.state.update(late=nn.Linear(1, 1))),
        "the state has a Linear at late, where it had no module before round 1; create all modules in server_start",
    ),
    "a network that is a tuple": (
        Mistaken(make=lambda model: (model, model)),
        "Mistaken.client_model failed with model digits_mlp64: TypeError: it returned a tuple; return one torch module",
    ),
    "a buffer that is created later": (
        Mistaken(begin=lambda client: client.net.register_buffer("late", torch.ones(1))),
        "a hook added late to the client's network; create all parameters, buffers and modules in client_model",
    ),
    "a sparse tensor": (
        Mistaken(begin=lambda client: torch.eye(2).to_sparse()),
        "the field x of a message contains a sparse tensor; send dense tensors, such as tensor.to_dense()",
    ),
    "no number": (
        Mistaken(begin=lambda client: client.log("a", None)),  # type: ignore[arg-type]
        "ValueError: log: the value of a is a NoneType; give a number",
    ),
    "many numbers": (
        Mistaken(begin=lambda client: client.log("a", torch.ones(2))),  # type: ignore[arg-type]
        "ValueError: log: the value of a is a tensor of shape (2,); give a number",
    ),
}


@pytest.mark.parametrize(("method", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_it_ends_the_run(method: Mistaken, sentence: str) -> None:
    with pytest.raises(RunError, match=re.escape(sentence)):
        run_of(method)


class Poisoning(LGFedAvg):
    """The server's header becomes NaN in round 1."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        server.state = Header({name: value / 0 * 0 for name, value in server.state.w.items()})


def test_a_server_that_sends_nan_is_named(caplog: pytest.LogCaptureFixture) -> None:
    run_of(Poisoning(), "rounds=2", "clients.participation=1")
    texts = [text for text in caplog.messages if "NaN" in text]
    sentence = "round 2: the server's message to clients 0, 1, 2, 3, 4, 5, 6, 7 contained NaN or infinity, so their"
    assert any(text.startswith(sentence) for text in texts)
    assert not any("for the first time" in text for text in texts)


def test_a_logged_tensor_may_have_a_gradient() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = run_of(Mistaken(begin=lambda client: client.log("a", torch.ones((), requires_grad=True))))  # type: ignore[arg-type]
    assert memory.rounds[1]["client/a"] == 1
