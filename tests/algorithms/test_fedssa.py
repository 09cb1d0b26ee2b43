"""FedSSA against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from raysim.algorithms.fedssa import FedSSA, Rows, State, rows_of
from raysim.contract.toy import toy_model, toy_samples
from raysim.core import Client, LocalTraining, Server, Task
from raysim.core.seeds import seeded


def header_of(rows: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    header = nn.Linear(len(rows[0]), len(rows))
    with torch.no_grad():
        header.weight.copy_(torch.tensor(rows))
        header.bias.copy_(torch.tensor(bias or [0.0] * len(rows)))
    return header


def rows(weight: list[list[float]], bias: list[float] | None = None) -> Rows:
    return Rows(torch.tensor(weight), torch.tensor(bias or [0.0] * len(weight)))


def server_of(header: nn.Linear, owners: dict[int, list[int]], t: int = 1) -> Server[State]:
    task = Task(len(header.bias), header.in_features, ("flat",), toy_model)
    state = State(header, {k: torch.tensor(classes) for k, classes in owners.items()}, {})
    return Server(task, torch.Generator(), {k: 10 * k + 1 for k in owners}, t=t, state=state)


def client_with(net: nn.Module, labels: list[int], t: int) -> Client:
    task = Task(4, 8, ("flat",), toy_model)
    return Client(0, task, toy_samples(labels, 0), net, LocalTraining(), seeded(1, "client", t, 0), t=t)


A, B = rows([[1.0, 0.0], [2.0, 2.0]]), rows([[4.0, 0.0], [6.0, 6.0]])


def test_kat_1_rows_are_averaged_over_their_owners_without_weights():
    # Client 0 owns classes 0 and 1, client 1 owns 1 and 2 and has eleven times the samples.
    server = server_of(header_of([[9.0, 9.0]] * 3), {0: [0, 1], 1: [1, 2]})
    FedSSA().server_update(server, {0: A, 1: B})
    assert server.state.header.weight.tolist() == [[1, 0], [3, 1], [6, 6]]
    assert server.values["header_norm"] == pytest.approx(math.sqrt(1 + 9 + 1 + 36 + 36))


@pytest.mark.parametrize(
    ("t_stable", "mu0", "expected"),
    [
        (2, 0.5, {0: 0.5, 1: 0.353553, 2: 0.0, 3: 0.0}),
        (10, 1.0, {1: 0.98769, 5: 0.70711, 10: 0.0}),
    ],
)
def test_kat_2_the_weight_falls_along_a_cosine(t_stable: int, mu0: float, expected: dict[int, float]):
    # The numbers count rounds from 0, as the released code does; the engine counts from 1.
    method = FedSSA(t_stable=t_stable, mu0=mu0)
    assert {t: method.mu(t + 1) for t in expected} == pytest.approx(expected, abs=5e-6)
    assert [FedSSA(t0=1, t_stable=t_stable, mu0=mu0).mu(t) for t in expected if t] == [
        method.mu(t + 1) for t in expected if t
    ]


@pytest.mark.parametrize(("fusion", "expected"), [("sum", [5.0, 1.0]), ("convex", [10 / 3, 2 / 3])])
def test_kat_3_global_and_own_rows_are_fused(fusion: str, expected: list[float]):
    net = toy_model("flat")
    net.header = header_of([[4.0, 0.0]] * 4, [2.0] * 4)
    before = net.header.weight.detach().clone()
    client = client_with(net, [1, 3, 1], t=1)
    FedSSA(fusion=fusion).client_receive(client, rows([[3.0, 1.0]] * 2, [1.0] * 2))
    for c in (1, 3):
        assert_close(net.header.weight[c].detach(), torch.tensor(expected))
        assert_close(net.header.bias[c].item(), 2.0 if fusion == "sum" else 4 / 3)
    # Rows of classes that the client does not own stay its own.
    assert torch.equal(net.header.weight[[0, 2]], before[[0, 2]]) and net.header.bias[0] == 2


@pytest.mark.parametrize("t", [1, 2, 3])
def test_a_convex_fusion_keeps_the_scale_in_every_round(t: int):
    net = toy_model("flat")
    before = net.header.weight.detach().clone()
    # It receives its own rows: their mean with these is the same rows, whatever the weight.
    FedSSA(fusion="convex").client_receive(client_with(net, [1, 3, 1], t), rows_of(net.header, torch.tensor([1, 3])))
    assert_close(net.header.weight.detach(), before)


@pytest.mark.parametrize(
    ("agg", "expected"),
    [
        # Client 1 sent [4] in round 1 and client 0 sends [2] in round 2; client 2's initial row is [6].
        ("participants", 2.0),
        ("cached", 3.0),
        ("official", 4.0),
    ],
)
def test_whose_rows_are_averaged(agg: str, expected: float):
    method = FedSSA(agg=agg)
    task = Task(1, 1, ("flat",), toy_model)
    server = Server(task, torch.Generator(), {0: 1, 1: 1, 2: 1})
    initial = rows([[6.0]]) if agg == "official" else None
    server.classes = dict.fromkeys(range(3), torch.tensor([0]))
    server.state = method.server_start(server, dict.fromkeys(range(3), initial))
    method.server_update(server, {1: rows([[4.0]])})
    method.server_update(server, {0: rows([[2.0]])})
    assert server.state.header.weight.item() == expected


def test_only_own_rows_are_sent_by_default_from_round_1_on():
    header = nn.Linear(5, 4)
    server = server_of(header, {0: [1, 3]})
    down = FedSSA().server_send(server, 0)
    assert down is not None and torch.equal(down.weight_SD, header.weight[[1, 3]])
    assert FedSSA(fuse_first=False).server_send(server, 0) is None
    server.t = 2
    assert FedSSA(fuse_first=False).server_send(server, 0) is not None
