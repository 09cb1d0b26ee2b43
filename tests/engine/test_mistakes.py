"""Mistakes in a method that would cost training, or the state of a resumed run, without a word: they end the run."""

from __future__ import annotations

import copy
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.lg_fedavg import LGFedAvg
from algorithms.standalone import Standalone
from raysim.common.errors import RunError
from raysim.core import Algorithm, Batch, Client, ClientId, Header, Server, Task, message
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.ops import cross_entropy
from raysim.engine.checkpoint.manager import CheckpointManager
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.tracking.in_memory import MemoryTracker
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


def detached(net: Any, batch: Batch, given: Any) -> Tensor:
    return cross_entropy(net, batch, given).detach()


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
        "the values that disconnected returned do not depend on the network's trained parameters; compute them from",
    ),
    "a detached loss": (
        Mistaken(loss=detached),
        "the values that detached returned do not depend on the network's trained parameters; compute them from",
    ),
    "a defaultdict": (
        Mistaken(first=lambda: defaultdict(int)),
        "the state contains a defaultdict at its top level; use a dict, because a restored state has only dicts",
    ),
    "another module in the place of the first": (
        Mistaken(
            first=lambda: {"net": nn.Linear(2, 1)}, update=lambda server: server.state.update(net=nn.Linear(3, 1))
        ),
        "the state's module at net has another weight than before round 1; keep the shapes and types of the module",
    ),
    "a tensor with its graph": (
        Mistaken(first=dict, update=lambda server: server.state.update(w=torch.ones(1, requires_grad=True) * 2)),
        "the tensor at w of the state is connected to the tensors that it was computed from; store tensor.detach()",
    ),
    "an optimizer": (
        Mistaken(first=lambda: {"adam": torch.optim.Adam([torch.ones(1, requires_grad=True)])}),
        "the state contains a Adam at adam; store its state_dict(), and load it into a new optimizer in each round",
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
    "a forward hook that stays": (
        Mistaken(begin=lambda client: (client.net.register_forward_hook(lambda *_: None), torch.ones(1))[1]),
        "client 0 with model digits_mlp64: the method left a torch hook, such as a forward hook, on the client's",
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
        "ValueError: log: the value of a is a tensor of shape (2,) and type torch.float32; give a number",
    ),
}


@pytest.mark.parametrize(("method", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_it_ends_the_run(method: Mistaken, sentence: str) -> None:
    with pytest.raises(RunError, match=re.escape(sentence)):
        run_of(method)


@dataclass(frozen=True)
class SometimesConstant(Standalone):
    """Its loss is a constant for every second batch, as one that selects samples by a threshold."""

    def client_update(self, client: Client, down: None) -> None:
        client.fit(self.loss)

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        loss = cross_entropy(net, batch, None)
        return loss if batch.index[0] % 2 else torch.zeros((), requires_grad=True)


def test_a_loss_may_be_constant_for_some_batches() -> None:
    assert run_of(SometimesConstant()).rounds[1]["loss/train"] > 0


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


def test_a_late_mistake_ends_the_round_in_which_it_is_made() -> None:
    def late(server: Server[Any]) -> None:
        if server.t == 2:
            server.state["late"] = nn.Linear(1, 1)

    with pytest.raises(RunError, match=r"server_update failed in round 2 .* the state has a Linear at late"):
        run_of(Mistaken(first=dict, update=late), "rounds=3")


def test_a_new_network_at_the_registration_is_refused() -> None:
    @dataclass(frozen=True)
    class Registers(Mistaken):
        def client_register(self, client: Client) -> Any:
            client.net = copy.deepcopy(client.net)

    with pytest.raises(RunError, match=r"a hook of client 0 assigned a new network to client\.net in round 0"):
        run_of(Registers())


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


class Talkative(Mistaken):
    """Both hooks of the server log a value."""

    def server_send(self, server: Server[Any], to: ClientId) -> Any:
        server.log("sent_to", float(to))

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Any]) -> None:
        server.log("received", float(len(ups)))


def test_what_both_hooks_of_the_server_log_is_kept() -> None:
    memory = run_of(Talkative(), "rounds=2", "clients.participation=1")
    assert [(row["server/sent_to"], row["server/received"]) for row in memory.rounds[1:]] == [(7, 8), (7, 8)]


def test_a_number_that_is_nan_is_left_out_as_a_tensor_is() -> None:
    memory = run_of(Talkative(begin=lambda client: float("nan") if client.id == 1 else 1.0), "clients.participation=1")
    assert memory.rounds[1]["server/received"] == 7
