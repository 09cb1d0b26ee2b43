"""A hook that changes a received message in place ends the run: one sentence names the hook and the client."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from raysim.algorithms.lg_fedavg import LGFedAvg
from raysim.common.errors import RunError
from raysim.core import Client, ClientId, Header, Server
from raysim.engine.workers.hooks import ChangedMessageError
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
        if self.how == "parameter":
            client.net.header.weight.data = down.w["weight"]  # local training then changes it
        elif self.how == "late numpy" and client.t == 2:
            down.w["bias"].numpy()[0] = 7

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


CLIENT_SIDE = {
    "parameter": ("client_update of client 0", 1),
    "late numpy": ("client_receive of client 0", 2),
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


def test_a_server_hook_that_changes_what_clients_sent() -> None:
    with pytest.raises(RunError, match="server_update"):
        run_of(Own(how="server"), *ONE_BY_ONE)


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


def test_a_message_to_one_client_is_dropped_after_it() -> None:
    run_of(Personal(), *ONE_BY_ONE, "clients.count=6", "evaluation.clients=all")
    assert max(Personal.most) <= 2  # the present one and, until it is replaced, the one before
