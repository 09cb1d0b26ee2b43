"""A client's upload after training on one image, and the attacker's model of that upload as a function of the image.

From the state of a saved round, the client trains one step of plain SGD on that image alone, without augmentation, and
uploads what its method uploads. `Algorithm.exposed` declares which part the attacker can match: an update, which
divided by the learning rate is a gradient, or an output of the client's network.

Shapes: B = 1 image, C classes, E observed numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysim.common.errors import ScenarioError
from raysim.core.algorithm import AnyAlgorithm, Client, ClientId
from raysim.core.data import Batch
from raysim.core.exposed import Exposed, OutputOf, Unexposed, UpdateOf
from raysim.core.fit import FitJob, FitResult, LocalTraining, fit_one, has_batchnorm
from raysim.core.messages import leaves, mapped, unpack
from raysim.core.seeds import global_seed
from raysim.engine.checkpoint.store import Checkpoint
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.spec import RunSpec
from raysim.engine.workers.hooks import errors_from, hook
from raysim.runs.opened import OpenedRun

Knowledge = Literal["white", "blind"]
"""The attacker's knowledge. white: it has the client's private weights, the worst case. blind: it replaces them by the
architecture with the fewest parameters, freshly initialised. Both know what the server sent."""


@dataclass(frozen=True)
class Transmission:
    """The observed part of a client's upload after training on one image, and the attacker's model of it."""

    seen_E: Tensor  # the observed numbers
    send: Callable[[Tensor, Tensor], Tensor]  # (normalised image [B, C, H, W], label [B, C] in [0, 1]) -> [E]
    uses_label: bool  # whether `send` reads the label


def attack_spec(spec: RunSpec) -> RunSpec:
    """The run's spec, with one step of plain SGD on images without augmentation as local training."""

    def plain(local: LocalTraining) -> LocalTraining:
        return LocalTraining(epochs=1, batch_size=local.batch_size, lr=local.lr)

    own = {k: plain(local) for k, local in spec.own_local.items()}
    local = plain(spec.local)
    return replace(spec, local=local, own_local=own, stragglers=None, transform=replace(spec.transform, augment=None))  # type: ignore[type-var]


def attackable(opened: OpenedRun, checkpoint: Checkpoint) -> list[ClientId]:
    """Return the clients that can be attacked: they have training samples, and their upload may expose one image.

    BatchNorm cannot train on one image. So one client of each architecture with BatchNorm is tried, and that
    architecture's clients count if the upload is an output. Raises `ScenarioError` if there are no such clients.
    """
    spec, t = attack_spec(opened.spec), checkpoint.round + 1
    normed = {
        arch
        for arch in spec.task.architectures
        if has_batchnorm(spec.algorithm.client_model(spec.task.model(arch), spec.task))
    }
    tried = {spec.arch(k): k for k in reversed(spec.eligible) if spec.arch(k) in normed}
    fits: set[str] = set()
    if tried:
        with opened.backend(tried.values(), checkpoint, spec) as backend:
            uploads = {arch: _upload_of(backend, t, k, 0) for arch, k in tried.items()}
            fits = {arch for arch, one in uploads.items() if one and isinstance(one.exposed(one.before), OutputOf)}
    clients = [k for k in spec.eligible if spec.arch(k) not in normed or spec.arch(k) in fits]
    if not clients:
        raise ScenarioError(
            f"{_name(spec.algorithm)} cannot be attacked in round {t}: the networks of all clients with samples "
            "contain BatchNorm, which cannot train on a single image; choose a run with other networks"
        )
    return clients


def transmit(backend: InProcessBackend, t: int, k: ClientId, sample: int, knowledge: Knowledge) -> Transmission:
    """Train client `k` on one of its samples in round `t`, and return its upload with the attacker's model of it.

    The clients of `backend` do not change. Raises `ScenarioError` if the method uploads nothing in that round, or
    does not declare what its uploads expose.
    """
    spec, upload = backend.spec, _upload_of(backend, t, k, sample)
    if upload is None:
        raise ScenarioError(
            f"{_name(spec.algorithm)} uploads nothing in round {t}; choose another --round, or a run of a method that "
            "uploads"
        )
    if isinstance(upload.exposed(upload.before), OutputOf):
        return _output(spec, upload, knowledge)
    return _update(spec, upload, knowledge)


@dataclass(frozen=True)
class _Upload:
    """A client, its upload and its training on one image."""

    algorithm: AnyAlgorithm
    client: Client  # after training
    before: nn.Module  # the client's network before training
    message: Any  # the upload
    jobs: list[tuple[nn.Module, FitJob]]  # every call of `client.fit`, with a copy of the network before it

    def exposed(self, net: nn.Module) -> UpdateOf | OutputOf:
        """The method's declaration of what the upload exposes, with `net` as the client's network."""
        name = _name(self.algorithm)
        with errors_from(lambda: f"{name}.exposed of client {self.client.id} failed"):
            exposed: Exposed | None = self.algorithm.exposed(replace(self.client, net=net), self.message)
        if isinstance(exposed, UpdateOf | OutputOf):
            return exposed
        if isinstance(exposed, Unexposed):
            raise ScenarioError(f"{name} {exposed.reason}; attack a run of another method")
        raise ScenarioError(
            f"{name} does not declare what its uploads expose; implement the hook `exposed`, as in the "
            "template of `raysim new algorithm`"
        )


def _name(algorithm: AnyAlgorithm) -> str:
    return type(algorithm).__name__


def _upload_of(backend: InProcessBackend, t: int, k: ClientId, sample: int) -> _Upload | None:
    """Client `k`'s upload in round `t` after training on one sample; None if it uploads nothing."""
    spec = backend.spec
    other = next((one for one in spec.eligible if spec.num_samples[one] != spec.num_samples[k]), k)
    broadcast = backend.send(t, list(dict.fromkeys([k, other])))
    down, others = (
        None if place is None else unpack(broadcast.messages[place]) for place in (broadcast.of[k], broadcast.of[other])
    )
    client = backend.worker.client(k, t)
    client.net = copy.deepcopy(client.net)
    if down is not None:
        with hook(spec.seed, "client_receive", t, k, spec.algorithm, torch.device("cpu"), down, client.arch):
            spec.algorithm.client_receive(client, down)
    before = copy.deepcopy(client.net)
    down = _for_one_sample(down, sample, spec.num_samples[k], others, spec.num_samples[other])
    client.data = client.data.subset(torch.tensor([sample]))
    jobs: list[tuple[nn.Module, FitJob]] = []

    def train(job: FitJob) -> FitResult:
        jobs.append((copy.deepcopy(client.net), job))
        return fit_one(job)

    client.trainer = train
    with hook(spec.seed, "client_update", t, k, spec.algorithm, torch.device("cpu"), down, client.arch):
        up = spec.algorithm.client_update(client, down)
    return None if up is None else _Upload(spec.algorithm, client, before, up, jobs)


def _for_one_sample(down: Any, sample: int, count: int, others: Any, other_count: int) -> Any:
    """Return a message whose tensors with a row for each of the client's samples, such as teachers, have one row.

    These are the tensors that have `count` rows here, and as many rows as the other client has samples in its message.
    """
    tensors = iter([value for value in leaves(others) if isinstance(value, Tensor)])

    def change(value: Tensor) -> Tensor:
        of_other = next(tensors, value)
        per_sample = value.shape[:1] == (count,) and of_other.shape[:1] == (other_count,) and count != other_count
        return value[[sample]] if per_sample else value

    return mapped(Tensor, change, down)


# -- outputs -----------------------------------------------------------------------------------------


def _output(spec: RunSpec, upload: _Upload, knowledge: Knowledge) -> Transmission:
    client = upload.client

    def model(net: nn.Module) -> OutputOf:
        exposed = upload.exposed(copy.deepcopy(net).eval())
        assert isinstance(exposed, OutputOf)
        return exposed

    def sender(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        function = model(net).function
        return lambda x, _: function(x).flatten()

    seen_E = model(upload.before).value.flatten()
    if knowledge == "blind":
        return Transmission(seen_E, sender(_substitute(spec)), uses_label=False)

    def miss(send: Callable[[Tensor, Tensor], Tensor]) -> float:
        return float((send(client.data.x, client.data.y).detach() - seen_E).square().sum())

    # Some methods send an output from before the step, others from after it: take the network that fits better.
    send = min((sender(upload.before), sender(client.net)), key=miss)
    return Transmission(seen_E, send, uses_label=False)


# -- updates -----------------------------------------------------------------------------------------


def _update(spec: RunSpec, upload: _Upload, knowledge: Knowledge) -> Transmission:
    net, job = _training(upload)
    exposed = _update_of(upload, net)
    shared = _shared(exposed)
    places = {name: _places_sent(exposed.after[name]) for name in shared}

    def sent(named: Mapping[str, Tensor]) -> Tensor:
        """Select the numbers of the shared parameters, or of their gradients, that the upload contains, [E]."""
        return torch.cat([named[name].flatten()[place] for name, place in places.items()])

    of_net = {id(w): name for name, w in net.named_parameters()}
    rates = {name: job.rates.get(of_net[id(w)], job.local.lr) for name, w in shared.items()}
    rate_E = sent({name: torch.full_like(w, rates[name]) for name, w in shared.items()})
    seen_E = (sent({name: w.detach() for name, w in shared.items()}) - sent(exposed.after)) / rate_E
    if knowledge == "blind" and len(shared) < len(of_net):
        net = _substitute(spec)
        known = {name: w for name, w in exposed.part.state_dict().items() if name in exposed.after}
        part = _update_of(upload, net).part
        part.load_state_dict(known, strict=False)
        shared = {name: w for name, w in part.named_parameters() if name in shared}
    net.train()
    loss = exposed.loss or job.loss

    def send(x: Tensor, label: Tensor) -> Tensor:
        with _Teachers():
            result = loss(net, Batch(x, label, torch.zeros(1, dtype=torch.int64)), job.given)
        value = result[0] if isinstance(result, tuple) else result
        gradients = _step_gradients(value, list(shared.values()))
        return sent(dict(zip(shared, gradients, strict=True)))

    return Transmission(seen_E, send, uses_label=True)


def _training(upload: _Upload) -> tuple[nn.Module, FitJob]:
    """The call of `client.fit` that trains the exposed parameters, with a copy of the network before it."""
    calls = [
        (net, job)
        for net, job in upload.jobs
        if any(w.requires_grad for w in _shared(_update_of(upload, net)).values())
    ]
    if len(calls) != 1:
        raise ScenarioError(
            f"{_name(upload.algorithm)} calls client.fit {len(calls)} times to train the parameters that its upload "
            "reveals, but the attack needs exactly one call; choose a run of another method"
        )
    return calls[0]


def _update_of(upload: _Upload, net: nn.Module) -> UpdateOf:
    exposed = upload.exposed(net)
    assert isinstance(exposed, UpdateOf)
    return exposed


def _shared(exposed: UpdateOf) -> dict[str, nn.Parameter]:
    """The network's parameters that the upload contains, by name."""
    return {name: w for name, w in exposed.part.named_parameters() if name in exposed.after}


def _places_sent(after: Tensor) -> Tensor | slice:
    """The indices of a flattened parameter that are sent; a slice if all are, which is faster for large networks."""
    known_E = ~after.isnan().flatten()
    return slice(None) if bool(known_E.all()) else known_E.nonzero().flatten()


def _substitute(spec: RunSpec) -> nn.Module:
    """Return the fresh network that an attacker without the client's private weights uses in their place."""
    with global_seed(spec.seed, "attack"):
        return spec.algorithm.client_model(spec.fresh_model(spec.task.smallest(), "attack"), spec.task)


class _Constant(torch.autograd.Function):
    """A teacher in a loss: constant for the client's step, differentiable for the attacker, who varies the image."""

    stepping = False

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if _Constant.stepping else gradient


class _Teachers(TorchFunctionMode):
    """A context in which `detach` stops the gradient of the client's step, but not the attacker's."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.detach and args[0].requires_grad:
            return _Constant.apply(args[0])
        return function(*args, **(kwargs or {}))


def _step_gradients(value: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of a client's step, itself differentiable."""
    _Constant.stepping = True
    try:
        return torch.autograd.grad(value, parameters, create_graph=True)
    finally:
        _Constant.stepping = False
