"""A hook that changes a received message in place ends the run: one sentence names the hook and the client."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pytest
import torch

from raysim.algorithms.lg_fedavg import LGFedAvg
from raysim.common.errors import RunError
from raysim.core import Client, ClientId, Header, Server, message, weights
from raysim.engine.workers.unchanged import ChangedMessageError
from tests.engine.scenarios import loaded, rounds_of

ONE_BY_ONE = ("clients.models=[digits_mlp64]", "clients.count=3", "clients.participation=1.0", "rounds=2")
TOGETHER = (*ONE_BY_ONE, "training.together=3")


def run_of(algorithm: Any, *sets: str) -> None:
    rounds_of(loaded(*sets), algorithm=algorithm)


@dataclass(frozen=True)
class Own(LGFedAvg):
    """LG-FedAvg, some of whose hooks do what `how` says to the message."""

    how: str = ""

    def client_receive(self, client: Client, down: Header) -> None:
        super().client_receive(client, down)
        if self.how == "receive":
            down.w["bias"].add_(1)
        elif self.how == "parameter":
            client.net.header.weight.data = down.w["weight"]  # local training then changes it
        elif self.how == "late numpy" and client.t == 2:
            down.w["bias"].numpy()[0] = 7
        elif self.how == "second round" and client.t == 2 and client.id == 1:
            down.w["bias"].mul_(0.5)

    def client_update(self, client: Client, down: Header | None) -> Header:
        if down is not None and self.how == "update" and client.id == 1:
            down.w["bias"].sub_(1)
        if down is not None and self.how == "fails":
            down.w["bias"].sub_(1)
            raise ValueError("no")
        return super().client_update(client, down)

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        if self.how == "server":
            ups[0].w["bias"].add_(ups[1].w["bias"])
        super().server_update(server, ups)

    def client_register(self, client: Client) -> Any:
        return Header(weights(client.net.header)) if self.how == "register" else None

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        if self.how == "register":
            registrations[0].w["bias"].zero_()
        return super().server_start(server, registrations)


CLIENT_SIDE = {
    "receive": ("client_receive of client 0", 1),
    "parameter": ("client_update of client 0", 1),
    "late numpy": ("client_receive of client 0", 2),
    "second round": ("client_receive of client 1", 2),
    "update": ("client_update of client 1", 1),
}


@pytest.mark.parametrize("sets", [ONE_BY_ONE, TOGETHER], ids=["one by one", "together"])
@pytest.mark.parametrize("how", CLIENT_SIDE)
def test_a_client_hook_that_changes_the_broadcast(how: str, sets: tuple[str, ...]) -> None:
    hook, t = CLIENT_SIDE[how]
    with pytest.raises(ChangedMessageError, match=rf"Own: {hook} .*round {t}\b"):
        run_of(Own(how=how), *sets)


def test_a_client_that_fails_as_well_does_not_hide_it() -> None:
    with pytest.raises(ChangedMessageError, match="client 0"):
        run_of(Own(how="fails"), *ONE_BY_ONE, "failure={max_failed_fraction: 0.9}")


@pytest.mark.parametrize(("how", "hook"), [("server", "server_update"), ("register", "server_start")])
def test_a_server_hook_that_changes_what_clients_sent(how: str, hook: str) -> None:
    with pytest.raises(RunError, match=hook):
        run_of(Own(how=how), *ONE_BY_ONE)


def test_a_mapping_of_uploads_and_a_cached_property_are_the_hooks_own() -> None:
    @message
    class Cached(Header):
        @cached_property
        def bias(self) -> torch.Tensor:
            return self.w["bias"].clone()

    class Takes(Own):
        def server_send(self, server: Server[Any], client: ClientId) -> Any:
            return Cached(super().server_send(server, client).w)

        def client_receive(self, client: Client, down: Any) -> None:
            assert len(down.bias) == 10
            super().client_receive(client, down)

        def server_update(self, server: Server[Any], ups: Any) -> None:
            first = ups.pop(0)
            super().server_update(server, {0: first, **ups})

    run_of(Takes(), *ONE_BY_ONE)


def test_a_hook_may_read_copy_and_load_the_message() -> None:
    class Reads(Own):
        def client_update(self, client: Client, down: Header | None) -> Header:
            assert down is not None
            mine = {name: value.clone().mul_(0.5) for name, value in down.w.items()}
            torch.func.functional_call(client.net.header, down.w, torch.zeros(1, client.task.feature_dim))
            client.net.header.load_state_dict(mine)
            return super().client_update(client, down)

    run_of(Reads(), *ONE_BY_ONE)
    run_of(Reads(), *TOGETHER)


@dataclass(frozen=True)
class Personal(LGFedAvg):
    """Sends each client a message of its own."""

    alive: ClassVar[list[weakref.ref[Header]]] = []
    most: ClassVar[list[int]] = []

    def server_send(self, server: Server[Any], to: ClientId) -> Header:
        return Header({name: w.clone() for name, w in server.state.w.items()})

    def client_receive(self, client: Client, down: Header) -> None:
        super().client_receive(client, down)
        self.alive.append(weakref.ref(down))
        self.most.append(sum(one() is not None for one in self.alive))


@pytest.mark.parametrize("sets", [(), ("evaluation.clients=all",)])
def test_a_message_to_one_client_is_dropped_after_it(sets: tuple[str, ...]) -> None:
    Personal.alive.clear(), Personal.most.clear()
    run_of(Personal(), *ONE_BY_ONE, "clients.count=6", *sets)
    assert max(Personal.most) <= 2  # the present one and, until it is replaced, the one before
