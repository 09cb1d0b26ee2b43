"""Runs of raysim end with the networks that a second implementation computes, which shares no code with it.

Both begin with the same samples, initial weights, cohorts and order of batches, which come from raysim. The settings of
the methods avoid random draws. The only one left is FedTGP's initial network, for which both use the same generator. So
these tests do not cover:

- the order of DC-PFL's virtual samples: another test compares the refit on all of them at once, to within chance;
- FedTGP's order of prototypes: the server trains on all of them at once;
- two different views in FedClassAvg: without augmentation, both are the same image;
- FedCache's encoder with ImageNet weights, and equal distances in its neighbours and in the clusters of HKS;
- BatchNorm's statistics, networks of several architectures, and the methods' other options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import raysim
from raysim.core.data import Samples
from raysim.core.seeds import global_seed, seeded
from tests.conftest import plain_runs
from tests.independent import headers, knowledge, loop, pairs
from tests.independent.knowledge import updated
from tests.independent.loop import Networks, Result, Start, Weights

pytestmark = pytest.mark.xdist_group("independent")  # they share their runs

SEED, ROUNDS, TOLERANCE = 18, 6, 1e-4

MODES: dict[str, dict[str, Any]] = {
    "full_batch": {"epochs": 2, "batch_size": 1000, "lr": 0.1},
    "mini_batches": {
        "epochs": 2, "batch_size": 32, "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "clip": 1.0
    },
}  # fmt: skip
"""Settings of local training."""

METHODS: dict[str, tuple[Callable[[Start], Result], dict[str, Any]]] = {
    "standalone": (loop.standalone, {}),
    "fedavg": (loop.fedavg, {}),
    "lg_fedavg": (headers.lg_fedavg, {}),
    "fedclassavg": (headers.fedclassavg, {"rho": 2.0}),
    "fedssa": (headers.fedssa, {"t_stable": 4}),
    "fedral": (headers.fedral, {"blocks": [*headers.BLOCKS]}),
    "fedgh": (headers.fedgh, {"header_lr": 0.5}),
    "dc_pfl": (headers.dc_pfl, {"header_lr": 0.5, "lambda_": 0.3, "virtual_samples": 0}),
    "fml": (pairs.fml, {"a": 0.3, "b": 0.6}),
    "fedkd": (pairs.fedkd, {"energy_start": 0.8, "energy_end": 0.9}),
    "fedapen": (pairs.fedapen, {"adaptability": 0.1, "lambda_lr": 0.1}),
    "fd": (knowledge.fd, {}),
    "fedproto": (knowledge.fedproto, {"inference": "nearest", "nearest": "all"}),
    "fedtgp": (knowledge.fedtgp, {"inference": "nearest", "lambda_": 2.0, "server_epochs": 5, "server_batch": 100}),
    "fedcache": (knowledge.fedcache, {"neighbours": 4, "alpha": 0.5}),
    "hks": (knowledge.hks, {"warmup": 2, "alpha": 4.0, "temperature": 2.0}),
    "hks middle": (
        partial(knowledge.hks, level="middle"),
        {"warmup": 2, "alpha": 4.0, "temperature": 2.0, "granularity": "middle"},
    ),
}
"""The second implementation of each method, and its settings in a scenario."""


def scenario(name: str, training: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Eight clients of 8 to 145 samples, each with some of the classes; half of them in each round.

    In most rounds, no participant has some of the classes, and in round 2 clients have classes that nobody has sent.
    """
    method = name.split()[0]
    return {
        "name": "independent",
        "seed": SEED,
        "rounds": ROUNDS,
        "backend": "in_process",
        "algorithm": {"name": method, **METHODS[name][1]},
        "data": {
            "name": "digits",
            "partition": {"name": "dirichlet", "alpha": 0.1},
            "split": {"train": 0.4, "test": 0.6},
        },
        "clients": {"count": 8, "participation": 0.5, "models": ["digits_mlp64"]},
        "training": training,
        "evaluation": {"every": ROUNDS},
        "resources": {"gpus_per_actor": 0},
        **changes,
    }


NAMES = {
    "extractor.1.0.": "extractor.", "private.": "own.", "shared.": "small.", "matrix_DD": "matrix",
    "lambda_": "lambda", "projection.weight": "projection", "prototype_CD": "prototypes",
}  # fmt: skip


def translated(state: dict[str, Tensor], model: str) -> Weights:
    """Return the tensors of a raysim network by the names of `loop.py`. model: prefix of the client's own network."""
    weights = {}
    for name, value in state.items():
        for theirs, ours in {"model.": model, **NAMES}.items():
            name = name.replace(theirs, ours)
        weights[name] = value.double()
    return weights


def exported(run: raysim.Run, folder: Path, model: str = "") -> list[Weights]:
    """Return the networks of all clients after the last round."""
    run.export(folder)
    return [translated(load_file(folder / f"client-{k}.safetensors"), model) for k in range(8)]


class Runs:
    """The runs of raysim, each made once, and the beginnings that they share with the second implementation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin = cache(self._begin)
        self.end = cache(self._end)
        self.initial = cache(self._initial)
        self.samples = cache(self._samples)

    def _initial(self) -> tuple[Networks, dict[str, Weights]]:
        """Return the initial networks of clients and server. A round at a learning rate of nearly 0 changes none.

        All methods that share a header begin with the same one; so do those that share a second network.
        """
        begun = {}
        for name in ("lg_fedavg", "fedkd", "fedral"):
            run = raysim.run(scenario(name, {"lr": 1e-30}, rounds=1), quiet=True)
            begun[name] = exported(run, self.folder / f"begin-{name}", "own." if name == "fedkd" else "")
        took_part = run.clients.query("participated").client.min()
        shared = {
            "header": loop.header_of(begun["lg_fedavg"][took_part]),
            "small": loop.part(begun["fedkd"][0], "small."),
            "projection": {"projection": begun["fedkd"][0]["projection"]},
            "matrix": {"matrix": begun["fedral"][took_part]["matrix"]},
            "prototypes": prototype_network(32),
        }
        return [loop.part(net, "own.") for net in begun["fedkd"]], shared

    def _samples(self) -> list[Samples]:
        """Return the training samples of each client."""
        run = raysim.run(scenario("standalone", {}, rounds=1), quiet=True)
        return [run.client(k).data.train for k in range(8)]

    def _begin(self, mode: str) -> Start:
        """Return the beginning of the runs with these settings of local training."""
        local, samples = MODES[mode], self.samples()

        def batches(t: int, k: int, among: Tensor) -> list[Tensor]:
            rng = seeded(SEED, "client", t, k)
            shuffled = samples[k].subset(among).shuffled(local["batch_size"], local["epochs"], rng)
            return [among[i] for i in shuffled.places()]

        nets, shared = self.initial()
        return Start(
            nets=nets,
            shared=shared,
            x=[one.x.flatten(1).double() for one in samples],
            y=[one.y for one in samples],
            cohorts=self.end("standalone", mode)[2],
            batches=batches,
            lr=local["lr"],
            momentum=local.get("momentum", 0.0),
            decay=local.get("weight_decay", 0.0),
            clip=local.get("clip", float("inf")),
        )

    def _end(self, name: str, mode: str) -> tuple[Networks, Weights, list[list[int]]]:
        """Return the clients' networks after a run, that of client 0 after the next message, and the participants."""
        run = raysim.run(scenario(name, MODES[mode]), quiet=True)
        model = "own." if name in ("fml", "fedkd") else ""
        nets = exported(run, self.folder / f"end-{mode}-{name}", model)
        current: nn.Module = run.client(0).current_network
        took_part = run.clients.query("participated").groupby("round").client.apply(sorted)
        return nets, translated(current.state_dict(), model), [took_part[t] for t in range(1, ROUNDS + 1)]


def prototype_network(width: int) -> Weights:
    """Return FedTGP's initial network: torch draws it from the generator that raysim seeds for this hook."""
    with global_seed(SEED, "server_start", 0, -1):
        embedding, first, second = nn.Embedding(10, width), nn.Linear(width, width), nn.Linear(width, width)
    net = {
        "embedding": embedding.weight,
        "weight1": first.weight, "bias1": first.bias,
        "weight2": second.weight, "bias2": second.bias,
    }  # fmt: skip
    return {name: value.detach().double() for name, value in net.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Iterator[Runs]:
    """Runs that draw no pictures, in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        plain_runs(patch, tracking_store)
        patch.chdir(tmp_path_factory.mktemp("independent"))
        yield Runs(Path.cwd())


def difference(runs: Runs, name: str, mode: str) -> float:
    """Return the greatest difference between a run and the second implementation, over all networks."""
    start = runs.begin(mode)
    nets, current, cohorts = runs.end(name, mode)
    assert cohorts == start.cohorts
    own, sent = METHODS[name][0](start)
    both = [*zip(own, nets, strict=True), (sent, current)]
    return max(float((value - theirs[key]).abs().max()) for ours, theirs in both for key, value in ours.items())


CASES = [
    pytest.param(name, mode, marks=() if mode == "mini_batches" and name != "hks middle" else pytest.mark.large)
    for name in METHODS
    for mode in MODES
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_run_ends_with_the_networks_of_the_second_implementation(runs: Runs, name: str, mode: str) -> None:
    assert difference(runs, name, mode) < TOLERANCE


# -- the check can fail ----------------------------------------------------------------------------------------------
Function = Callable[..., Any]


def late(start: Start, state: Any, client: Function, server: Function) -> Any:
    """Run all rounds like `loop.rounds`, but clients get the state of one round earlier."""
    earlier = state
    for t, cohort in enumerate(start.cohorts, 1):
        uploads = {k: client(k, earlier, t) for k in cohort}
        earlier, state = state, server(state, uploads, t)
    return earlier


def times(factor: float) -> Callable[[Function], Function]:
    """Return a slip: the function has another factor."""
    return lambda right: lambda *args: right(*args) * factor


def returns(value: Any) -> Callable[[Function], Function]:
    """Return a slip: the function returns a constant."""
    return lambda right: lambda *args: value


def over_clients(ups: dict[int, headers.Samples]) -> loop.OfClass:
    """Return the unweighted mean of the clients' class means."""
    return updated({}, {k: loop.class_means(*up) for k, up in ups.items()})


SLIPS: list[tuple[str, str, ModuleType, str, Callable[[Function], Function]]] = [
    ("standalone", "gradients not clipped", loop, "clip_scale", returns(1.0)),
    ("fedclassavg", "proximal term not halved", headers, "proximal", times(2)),
    ("fedclassavg", "other temperature", headers, "contrastive", lambda right: partial(right, temperature=0.1)),
    ("fedssa", "schedule from 1", headers, "own_share", lambda right: lambda t, *other: right(t + 1, *other)),
    ("fedral", "equal blocks", headers, "mask", lambda right: lambda blocks, width: right(4, width)),
    ("fedral", "transposed", headers, "angled", lambda right: lambda matrix, *other: right(matrix.T, *other)),
    ("fedgh", "half the rate", headers, "header_step", lambda right: lambda *args: right(*args[:2], args[2] / 2)),
    ("dc_pfl", "means over clients", headers, "pooled_means", lambda right: over_clients),
    ("dc_pfl", "sum over classes", headers, "header_step", lambda right: lambda h, r, lr: right(h, r, lr * len(r))),
    ("dc_pfl", "half the pull", headers, "pull", times(0.5)),
    ("fml", "divided by classes", loop, "kl", times(0.1)),
    ("fedkd", "no divisor", pairs, "divisor", returns(1.0)),
    ("fedkd", "not compressed", pairs, "compressed", lambda right: lambda change, energy: change),
    ("fedkd", "energy one round late", pairs, "compressed", lambda right: lambda m, e: right(m, e - 0.1 / ROUNDS)),
    ("fedapen", "weights exchanged", pairs, "ensemble", lambda right: lambda weight, *other: right(1 - weight, *other)),
    ("fedapen", "weight not learned", pairs, "learned", lambda right: lambda x, y, pair, weight, *other: weight),
    ("fd", "own logits included", knowledge, "teachers_of", lambda right: lambda server, k, owned: server.mean),
    ("fedproto", "half the pull", loop, "masked_mean", times(0.5)),
    ("fedproto", "earlier rows lost", knowledge, "updated", lambda right: lambda before, ups: right({}, ups)),
    ("fedtgp", "no margin", knowledge, "adaptive_margin", returns(0.0)),
    ("fedcache", "no factor T squared", loop, "kl", times(1 / 9)),
    ("fedcache", "a neighbour more", knowledge, "nearest", lambda right: lambda x, y, count: right(x, y, count + 1)),
    ("hks", "wrong level", knowledge, "distributions", lambda right: lambda z, level, T: right(z, "top", T)),
    ("hks", "a cluster less", knowledge, "paths", lambda right: lambda points, left: right(points, left - 1)),
    *(
        (name, "uniform mean", loop, "sizes", lambda right: lambda start, clients: [1.0] * len(clients))
        for name in ("fedavg", "lg_fedavg", "fedclassavg", "fedral", "fml")
    ),
    *((name, "one round late", loop, "rounds", lambda right: late) for name in list(METHODS)[1:-1]),
]
"""(method, slip, module, function, function of the right function that returns a wrong one)"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [pytest.param(name, *rest, id=f"{name}: {what}") for name, what, *rest in SLIPS],
)
def test_a_slip_exceeds_the_tolerance(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: ModuleType,
    function: str,
    wrong: Callable[[Function], Function],
) -> None:
    monkeypatch.setattr(module, function, wrong(getattr(module, function)))
    assert difference(runs, name, "mini_batches") > TOLERANCE


# -- DC-PFL's virtual samples ----------------------------------------------------------------------------------------
def refit_difference(runs: Runs, virtual: int = 50_000) -> float:
    """Return the greatest difference of the headers after a round of DC-PFL with virtual samples."""
    begin = runs.begin("full_batch")
    refit = {"virtual_samples": virtual, "refit_batch": virtual, "refit_lr": 1.0, "refit_epochs": 20}
    settings = {"name": "dc_pfl", **METHODS["dc_pfl"][1], **refit}
    run = raysim.run(scenario("dc_pfl", MODES["full_batch"], rounds=1, algorithm=settings), quiet=True)
    theirs = translated(run.client(0).current_network.state_dict(), "")
    _, header = headers.dc_pfl(replace(begin, cohorts=begin.cohorts[:1]), virtual=virtual)
    return max(float((value - theirs[name]).abs().max()) for name, value in header.items())


CHANCE = 0.04
"""Two draws of 50,000 virtual samples give headers that differ by half as much; the refit moves them by 0.5."""


def test_refit_agrees_to_within_chance(runs: Runs) -> None:
    assert refit_difference(runs) < CHANCE


def at_means(ups: dict[int, headers.Samples], count: int) -> headers.Samples:
    """Return virtual samples without covariance."""
    means, y = headers.pooled_means(ups), torch.cat([y for _, y in ups.values()])
    return torch.stack([means[c] for c in y.tolist()]), y


def within_clients(right: Function) -> Function:
    """Return a slip: the covariance lacks the distances between the clients' means."""

    def draw(ups: dict[int, headers.Samples], count: int) -> Any:
        means = headers.pooled_means(ups)
        moved = {}
        for k, (f, y) in ups.items():
            own = loop.class_means(f, y)
            moved[k] = (f - torch.stack([own[c] - means[c] for c in y.tolist()]), y)
        return right(moved, count)

    return draw


@pytest.mark.large
@pytest.mark.parametrize("wrong", [lambda right: at_means, within_clients], ids=["no covariance", "within clients"])
def test_a_slip_of_the_refit_exceeds_chance(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Function], Function]
) -> None:
    monkeypatch.setattr(headers, "virtual_samples", wrong(headers.virtual_samples))
    assert refit_difference(runs) > CHANCE
