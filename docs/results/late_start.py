"""FedSSA and Standalone with the late starts of FedSSA's released code, for docs/results.md.

In that code, a client that participates for the first time starts from the network of another client: the one with
the same architecture that trained last. Here, it is the network of the last such client in an earlier round.

raysim launch papers/fedssa/base --set algorithm.name=docs/results/late_start.py --set rounds=40
raysim launch papers/fedssa/base --set algorithm.name=docs/results/late_start.py --set rounds=40 \
    --set algorithm.rows=false
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.algorithms.fedssa import FedSSA, Rows, State
from raysim.core import Client, ClientId, Server, Weights, message, weights


@message
class RowsAndModel(Rows):
    """The rows of FedSSA, and a whole model."""

    model: Weights | None


@dataclass(frozen=True)
class StateAndModels(State):
    """The state of FedSSA, the last trained model of each architecture, and the clients that have participated."""

    models: dict[str, Weights]
    known: dict[ClientId, bool]


@dataclass(frozen=True)
class LateStart(FedSSA):
    """FedSSA in which a new participant starts from the last model of its architecture."""

    rows: bool = True
    """Average header rows as FedSSA does; `false`: clients train alone after their late start."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Rows | None]) -> State:
        state = super().server_start(server, registrations)
        return StateAndModels(state.header, state.class_S, state.latest, {}, {})

    def server_send(self, server: Server[Any], to: ClientId) -> Rows | None:
        rows = super().server_send(server, to)
        assert rows is not None  # because `fuse_first` is true
        model = None if to in server.state.known else server.state.models.get(server.arch[to])
        return RowsAndModel(rows.weight_SD, rows.bias_S, model)

    def client_receive(self, client: Client, down: Rows) -> None:
        assert isinstance(down, RowsAndModel)
        if down.model is not None:
            client.net.load_state_dict(down.model)
        if self.rows:
            super().client_receive(client, down)

    def client_update(self, client: Client, down: Rows | None) -> Rows:
        rows = super().client_update(client, down)
        return RowsAndModel(rows.weight_SD, rows.bias_S, weights(client.net))

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Rows]) -> None:
        super().server_update(server, {k: Rows(up.weight_SD, up.bias_S) for k, up in ups.items()})
        for k, up in ups.items():
            assert isinstance(up, RowsAndModel) and up.model is not None
            server.state.models[server.arch[k]] = up.model
            server.state.known[k] = True
