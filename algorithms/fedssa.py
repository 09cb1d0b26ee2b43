"""FedSSA: header rows are averaged per class; each client moves gradually from its own rows to the global rows.

Yi, Yu, Shi, Wang, Liu, Cui, Li. IJCAI 2024. https://arxiv.org/abs/2312.09006
A participant sends the header rows of the classes it owns; the server averages each row over the clients that own
the class. Before training, a client adds its own old rows to the global ones, with a weight that decays to zero.

Shapes: C classes, S classes one client owns, D representation width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Client, ClientId, Count, Fraction, Server, UpdateOf, message
from raysim.core.exposed import known_at
from raysim.core.ops import cross_entropy


@message
class Rows:
    """The header rows of a client's classes, by ascending class id."""

    weight_SD: Tensor
    bias_S: Tensor


@dataclass(frozen=True)
class State:
    """The server's state: the global header, the classes of each client, and the clients' last rows."""

    header: nn.Linear  # [C, D]
    class_S: dict[ClientId, Tensor]
    latest: dict[ClientId, Rows]  # client -> its last rows


@dataclass(frozen=True)
class FedSSA(Algorithm[Rows, Rows, State]):
    """Average each class's header row over its owners. Clients fuse it with their own row, whose weight decays."""

    paper: ClassVar[str] = "Yi et al., IJCAI 2024, https://arxiv.org/abs/2312.09006"
    stale_uploads = True
    state_of_samples: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {"agg": "official"}}

    fusion: Literal["sum", "convex"] = "sum"
    """Fusion of global and own rows. `sum`: global + mu * own (Eq. 4), which makes rows grow. `convex`: this sum
    divided by 1 + mu, which keeps the scale of the rows, and is better for t_stable above 10."""
    mu0: Fraction = 0.5
    """Weight of a client's own rows in the first round; 0: the global rows replace them."""
    t_stable: Count = 2
    """Number of rounds in which this weight decays to 0, along a quarter of a cosine."""
    agg: Literal["cached", "participants", "official"] = "cached"
    """The rows that the server averages. `cached`: the last rows of every client that has taken part. `participants`:
    the rows of the round's participants. `official`: the last rows of all clients, including initial rows (the released
    code)."""
    fuse_first: bool = True
    """Also fuse in round 1, with the server's random rows. `false`: participants start from their own rows."""
    t0: Literal[0, 1] = 0
    """Number of the first round in the schedule of the weight: 0 in the released code, 1 in the paper's notation."""

    def mu(self, t: int) -> float:
        """Return the weight of a client's own rows in round t (from 1): mu0 * cos(pi t / 2 t_stable), and then 0."""
        passed = t - 1 + self.t0
        # Eq. A
        return self.mu0 * math.cos(math.pi * passed / (2 * self.t_stable)) if passed < self.t_stable else 0.0

    def client_register(self, client: Client) -> Rows | None:
        return rows_of(client.net.header, client.data.y.unique()) if self.agg == "official" else None

    def server_start(self, server: Server[State], registrations: Mapping[ClientId, Rows | None]) -> State:
        header = server.task.new_header()
        initial = {k: rows for k, rows in registrations.items() if rows is not None}
        return State(header, dict(server.classes), initial)

    def server_send(self, server: Server[State], to: ClientId) -> Rows | None:
        if server.t == 1 and not self.fuse_first:
            return None
        return rows_of(server.state.header, server.state.class_S[to])

    def client_receive(self, client: Client, down: Rows) -> None:
        header, class_S, mu = client.net.header, client.data.y.unique(), self.mu(client.t)
        scale = 1 + mu if self.fusion == "convex" else 1.0
        with torch.no_grad():
            # Eq. 4
            header.weight[class_S] = (down.weight_SD + mu * header.weight[class_S]) / scale
            header.bias[class_S] = (down.bias_S + mu * header.bias[class_S]) / scale

    def client_update(self, client: Client, down: Rows | None) -> Rows:
        client.fit(cross_entropy)
        return rows_of(client.net.header, client.data.y.unique())

    def server_update(self, server: Server[State], ups: Mapping[ClientId, Rows]) -> None:
        state = server.state
        state.latest.update(ups)
        counted = ups if self.agg == "participants" else {k: state.latest[k] for k in sorted(state.latest)}
        average_rows(state.header, [(state.class_S[k], rows) for k, rows in counted.items()])
        # With `sum`, rows grow by the factor 1 + mu in each round until t_stable.
        server.log("header_norm", float(torch.linalg.vector_norm(state.header.weight.detach())))

    def exposed(self, client: Client, up: Rows) -> UpdateOf:
        class_S, header = client.data.y.unique(), client.net.header
        weight_CD = known_at(class_S, up.weight_SD, like=header.weight)
        return UpdateOf(header, {"weight": weight_CD, "bias": known_at(class_S, up.bias_S, like=header.bias)})


def rows_of(header: nn.Linear, class_S: Tensor) -> Rows:
    """Return a copy of a header's rows for these classes."""
    return Rows(header.weight.detach()[class_S], header.bias.detach()[class_S])


@torch.no_grad()
def average_rows(header: nn.Linear, owned: list[tuple[Tensor, Rows]]) -> None:
    """Replace each row by the unweighted mean over its owners (Eq. 3), in float64; keep rows without an owner."""
    count_C = torch.zeros(len(header.bias), dtype=torch.float64)
    weight_CD = torch.zeros(header.weight.shape, dtype=torch.float64)
    bias_C = torch.zeros(header.bias.shape, dtype=torch.float64)
    for class_S, rows in owned:
        count_C[class_S] += 1
        weight_CD[class_S] += rows.weight_SD.double()
        bias_C[class_S] += rows.bias_S.double()
    known_C = count_C > 0
    # Eq. 3
    header.weight[known_C] = (weight_CD / count_C[:, None])[known_C].float()
    header.bias[known_C] = (bias_C / count_C)[known_C].float()
